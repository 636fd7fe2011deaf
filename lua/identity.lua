-- identity: which server this is, so that two connections to one server can be told from connections to two.
-- returns {GRANTED, its run id, as four numbers of ten hexadecimal digits} | {UNKNOWN}: it does not say, or may not be asked
-- writes nothing; work O(1)
local about = pcall('INFO', 'server')
local id = type(about) == 'string' and string.match(about, 'run_id:(%x+)')
if not id or #id ~= 40 then return {UNKNOWN} end
local parts = {GRANTED}
for at = 1, 31, 10 do parts[#parts + 1] = tonumber(string.sub(id, at, at + 9), 16) end
return parts
