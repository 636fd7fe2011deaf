-- identity: which server this is, so that two connections to one server can be told from connections to two servers.
-- returns {GRANTED, its run id, as four numbers of ten hexadecimal digits} | {UNKNOWN}: it does not say, or INFO is not allowed
-- writes nothing; work O(1)
-- include: lib/prelude
-- include: lib/constants
local info = pcall('INFO', 'server')
local id = type(info) == 'string' and string.match(info, 'run_id:(%x+)')
if not id or #id ~= 40 then return {UNKNOWN} end
local reply = {GRANTED}
for at = 1, 31, 10 do reply[#reply + 1] = tonumber(string.sub(id, at, at + 9), 16) end
return reply
