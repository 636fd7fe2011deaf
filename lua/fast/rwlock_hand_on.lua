-- rwlock_hand_on: ends the only lease, and grants the lock to the first waiter, if that is alive and can receive a message: a writer, or a
-- reader that nobody waits behind. Upgrades, several readers and readers whose turn it is are left to the general script.
-- KEYS[1] lock     zset: the leases, see lib/constants
-- KEYS[2] meta     hash: seq is the last fence, less than 0 while there may be tombstones; streak and pass, see policy/rwlock
-- KEYS[3] queue    zset: the waiters and their heartbeats, see lib/constants
-- ARGV[1] token    of the lease
-- ARGV[2] channel_prefix  of the keepers' channels
-- ARGV[3] epoch    µs: see LONGEST_EPOCH
-- ARGV[4] way      the end of this process's id: how messages reach it, and those whose ids end so, see WAY
-- returns GRANTED: the lease has ended, and a waiter has the lock | GRANTED + RELEASE_QUEUE_EMPTY: it has ended, and nobody waits | UNDECIDED
-- writes KEYS[1..3], deletions first; work O(log n)
-- include: lib/constants
local call, pcall, time = redis.call, redis.pcall, redis.call('TIME')
local lock, meta, queue = KEYS[1], KEYS[2], KEYS[3]
local token, channel_prefix, epoch, way = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local seconds = time[1] - UNSET_CLOCK < 0 and time[1] + UNSET_CLOCK or time[1]
local now_us = seconds * 1000000 + time[2]
local now = (now_us - now_us % 1000) / 1000

local score = pcall('ZSCORE', lock, token)
if type(score) ~= 'string' or score - now <= 0 or score - ENDLESS > 0 then return UNDECIDED end
local heads = call('ZRANGE', queue, '0', '1')
local heir, alone = heads[1], string.sub(heads[2] or '+', 1, 1) == '+'
if not heir then
  call('ZREM', lock, token, '#' .. token, '+' .. token)
  return GRANTED + RELEASE_QUEUE_EMPTY
end
-- What is rare is left to the general script, as in rwlock_acquire.
local known = call('HMGET', meta, 'seq', 'streak', 'pass')
local last, streak, pass = tonumber(known[1] or nil), tonumber(known[2] or 0), known[3]
if not last or last < now_us - now_us % epoch or last <= LEAST_FENCE then return UNDECIDED end
local fence = last < now_us and now_us or last + 1
local stamp = fence == now_us and #time[2] == 6 and seconds .. time[2] or string.format('%.0f', fence)
local purpose = string.match(heir, FLAG, FLAG_FROM)
if purpose ~= 'w' and not (purpose == 'r' and alone) or pass and not alone or call('ZCARD', lock) ~= 2 then return UNDECIDED end

-- Is the heir alive, and can it receive a message? For the rest see mutex_hand_on.
local keeper, serial, ttl, claim_ttl, flags, max_streak = string.match(heir, TOKEN, TOKEN_FROM)
local lapse, claim = keeper and call('ZSCORE', queue, '+' .. heir), tonumber(claim_ttl)
local left = lapse and lapse - HEARTBEATS - now or 0
if left <= 0 or left + now >= UNSUBSCRIBED or string.sub(keeper, -#way) ~= way or not alone and (ttl == claim_ttl or left < claim / 2) then return UNDECIDED end
local channel = channel_prefix .. keeper
if pcall('PUBSUB', way == SHARDED and 'SHARDNUMSUB' or 'NUMSUB', channel)[2] == 0 then return UNDECIDED end
call('ZREM', queue, heir, '+' .. heir)
call('DEL', lock)
local heir_until = left >= claim and now + claim or now < 1e12 and now + left or string.sub(lapse, 4)
call('ZADD', lock, heir_until, heir, stamp, '#' .. heir)
call('PEXPIRE', lock, claim_ttl)
-- A writer that passes waiting readers adds to the streak. At its maximum those that wait now, up to the last, go before the next writer.
local readers = purpose == 'w' and not alone and call('ZRANGE', queue, BEHIND_WAITERS, READERS, 'BYSCORE', 'REV', 'LIMIT', '0', '1', 'WITHSCORES')
local counted, most = readers and readers[2] and streak + 1 or purpose == 'r' and streak or 0, tonumber(max_streak) or 0
if readers and readers[2] and most > 0 and counted >= most then
  call('HSET', meta, 'seq', stamp, 'streak', '0', 'pass', readers[2])
elseif counted ~= streak then
  call('HSET', meta, 'seq', stamp, 'streak', counted)
else
  call('HSET', meta, 'seq', stamp)
end
pcall(way == SHARDED and 'SPUBLISH' or 'PUBLISH', channel, serial .. ' ' .. stamp)
return GRANTED
