-- inspect: who holds and who waits. It only looks.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: small facts, the sequence of numbers
-- KEYS[3] queue    zset: token -> place
-- KEYS[4] beats    zset: token -> ms at which its heartbeat lapses
-- ARGV[1] after    the place behind which to begin with those who wait; 0: at the head
-- ARGV[2] most     how many of them to tell of; 0: tell of the holders instead
-- returns {number of holders, then token, fence, ms left for each of them}
--       | {0, then token, place, ms waited, ms until its heartbeat lapses for each waiter}
-- writes nothing; work O(log n + holders + most)
local after, most = ARGV[1], tonumber(ARGV[2])
-- include: facts
-- include: queue
local reply = {0}
if most == 0 then
  for i, holder in ipairs(holders()) do
    reply[1], reply[3 * i - 1], reply[3 * i], reply[3 * i + 1] = i, holder[1], holder[2], holder[3]
  end
  return reply
end
local list = call('ZRANGE', queue, '(' .. after, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
for i = 1, #list, 2 do
  local n, at = #reply, tonumber(list[i + 1])
  local lapse = tonumber(call('ZSCORE', beats, list[i])) or now
  reply[n + 1], reply[n + 2] = list[i], at
  reply[n + 3], reply[n + 4] = math.floor((now_us - ticket_of(at)) / 1000), lapse - now
end
return reply
