-- mutex_hand_on: ends a lease, and grants the lock to the first waiter, if that is alive and can receive a message.
-- KEYS[1] lock     string: the holder's token
-- KEYS[2] meta     hash: seq is the last fence; less than 0 while there may be tombstones
-- KEYS[3] queue    zset: the waiters and their heartbeats, see lib/constants
-- ARGV[1] token    of the lease
-- ARGV[2] channel_prefix  of the keepers' channels
-- ARGV[3] epoch    µs: see LONGEST_EPOCH
-- ARGV[4] way      the end of this process's id: how messages reach it, and those whose ids end so, see WAY
-- returns GRANTED: the lease has ended, and a waiter has the lock | GRANTED + RELEASE_QUEUE_EMPTY: it has ended, and nobody waits | UNDECIDED
-- writes KEYS[1..3], deletions first; work O(log n)
-- include: lib/constants
local call, pcall = redis.call, redis.pcall
local lock, meta, queue = KEYS[1], KEYS[2], KEYS[3]
local token, channel_prefix, epoch, way = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if pcall('GET', lock) ~= token then return UNDECIDED end
local heads = call('ZRANGE', queue, '0', '1')
if not heads[1] then
  call('DEL', lock)
  return GRANTED + RELEASE_QUEUE_EMPTY
end
-- What is rare is left to the general script, as in mutex_acquire.
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = (now_us - now_us % 1000) / 1000
local last = tonumber(call('HGET', meta, 'seq') or nil)
if not last or last < now_us - now_us % epoch or now_us <= LEAST_FENCE then return UNDECIDED end
local stamp = last < now_us and #time[2] == 6 and time[1] .. time[2] or string.format('%.0f', math.max(now_us, last + 1))

-- The heir is the first waiter that is alive and can receive a message. Those in front of it whose processes have ended leave the queue,
-- up to DEAD_HEADS of them.
local numsub, publish = 'NUMSUB', 'PUBLISH'
if way == SHARDED then numsub, publish = 'SHARDNUMSUB', 'SPUBLISH' end
local heir, keeper, serial, ttl, claim_ttl, lapse, left, channel
local leaving = {}
repeat
  heir = heads[1] or ''
  keeper, serial, ttl, claim_ttl = string.match(heir, TOKEN, TOKEN_FROM)
  lapse = keeper and call('ZSCORE', queue, '+' .. heir)
  left = lapse and lapse - HEARTBEATS - now or 0
  if left <= 0 or left + now >= UNSUBSCRIBED or string.sub(keeper, -#way) ~= way or #leaving > 2 * DEAD_HEADS then return UNDECIDED end
  leaving[#leaving + 1], leaving[#leaving + 2], channel = heir, '+' .. heir, channel_prefix .. keeper
  local dead = pcall('PUBSUB', numsub, channel)[2] == 0
  if dead then heads = call('ZRANGE', queue, #leaving / 2, #leaving / 2 + 1) end
until not dead
-- The next waiter is to be told if the heir's lease ends before its heartbeat, which is due at half of the present one's time. That can be
-- so if the claim is the whole lease, or is cut to less than half. Nobody waits behind the heir if the next member is a heartbeat.
local claim, told, retry = tonumber(claim_ttl), nil, nil
if (ttl == claim_ttl or left < claim / 2) and string.sub(heads[2] or '+', 1, 1) ~= '+' then
  local next_keeper, next_serial, _, next_claim = string.match(heads[2], TOKEN, TOKEN_FROM)
  local next_lapse, ms = (call('ZSCORE', queue, '+' .. heads[2]) or 0) - HEARTBEATS, math.min(left, claim)
  if next_keeper and now + ms < next_lapse % UNSUBSCRIBED - next_claim / 2 then
    if next_lapse >= UNSUBSCRIBED or string.sub(next_keeper, -#way) ~= way then return UNDECIDED end
    told, retry = channel_prefix .. next_keeper, string.format('%s -%.0f', next_serial, ms)
    if pcall('PUBSUB', numsub, told)[2] == 0 then return UNDECIDED end
  end
end

call('ZREM', queue, unpack(leaving))
-- The lease ends with the heartbeat. The last 13 digits of its score are cheaper to send than a number; before 2001 they are fewer.
call('SET', lock, heir, 'PXAT', left >= claim and now + claim or now < 1e12 and now + left or string.sub(lapse, 4))
call('HSET', meta, 'seq', stamp)
pcall(publish, channel, serial .. ' ' .. stamp)
if told then pcall(publish, told, retry) end
return GRANTED
