-- inspect: who holds or who waits. It only looks.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: small facts, the sequence of numbers
-- KEYS[3] queue    zset: token -> place
-- KEYS[4] heartbeats    zset: token -> ms at which its heartbeat lapses
-- ARGV[1] what     0: holders, 1: waiters
-- ARGV[2] after    how many holders to leave out; the place behind which to begin with those who wait
-- ARGV[3] most     how many to tell of
-- returns {how many, then token, fence, ms left for each holder}
--       | {how many, then token, place, ms waited, ms until its heartbeat lapses for each waiter}
-- writes nothing; work O(log n + after + most)
local what, after, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- include: metadata
-- include: queue
local reply = {0}
local function tell(...)
  reply[1] = reply[1] + 1
  for _, x in ipairs({...}) do reply[#reply + 1] = x end
end
if what == '0' then
  for _, holder in ipairs(holders(tonumber(after), most)) do tell(unpack(holder)) end
  return wrong or reply
end
local list = call('ZRANGE', queue, '(' .. after, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
for i = 1, #list, 2 do
  local at = tonumber(list[i + 1])
  local lapse = tonumber(call('ZSCORE', heartbeats, list[i]) or now)
  tell(list[i], at, math.floor((now_us - ticket_of(at)) / 1000), lapse - now)
end
return reply
