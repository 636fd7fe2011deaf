-- inspect: lists the holders or the waiters.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: token -> place; heartbeats, see lib/heartbeats
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused
-- ARGV[1] subject  0: holders, 1: waiters
-- ARGV[2] after    how many holders to skip; the place after which the waiters begin
-- ARGV[3] count    how many to list at most
-- returns {how many, then token, fence, ms left for each holder}
--       | {how many, then token, place, ms waited, ms until its heartbeat lapses for each waiter}
-- writes nothing; work O(log n + after + count)
local subject, after, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- include: lib/metadata
-- include: lib/lapses_of
-- include: policy/KIND/holders
-- include: policy/KIND/ticket_of
local reply = {0}
local function append(...)
  reply[1] = reply[1] + 1
  for _, x in ipairs({...}) do reply[#reply + 1] = x end
end
if subject == '0' then
  for _, holder in ipairs(holders(tonumber(after), count)) do append(unpack(holder)) end
  return type_error or reply
end
local list = call('ZRANGE', queue, '(' .. after, BEHIND_WAITERS, 'BYSCORE', 'LIMIT', 0, count, 'WITHSCORES')
for i = 1, #list, 2 do
  local at = tonumber(list[i + 1])
  local lapse = lapses_of({list[i]})[1]
  append(list[i], at, math.floor((now_us - ticket_of(at)) / 1000), lapse > 0 and lapse - now or 0)
end
return reply
