-- semaphore_hand_on: ends a lease of permits, and grants them to the first waiter, if that is alive and can receive a message, and nobody
-- can be granted any after it: it waits alone, or takes all that are free, and no lease has expired.
-- KEYS[1] lock     zset: the leases, see lib/constants
-- KEYS[2] meta     hash: seq is the last fence, less than 0 while there may be tombstones; limits, see policy/limits
-- KEYS[3] queue    zset: the waiters and their heartbeats, see lib/constants
-- ARGV[1] token    of the lease
-- ARGV[2] channel_prefix  of the keepers' channels
-- ARGV[3] epoch    µs: see LONGEST_EPOCH
-- ARGV[4] way      the end of this process's id: how messages reach it, and those whose ids end so, see WAY
-- returns GRANTED: a waiter has the permits | GRANTED + RELEASE_QUEUE_EMPTY: the lease has ended, and nobody waits | UNDECIDED
-- writes KEYS[1..3], deletions first; work O(log n)
-- include: lib/constants
local call, pcall, time = redis.call, redis.pcall, redis.call('TIME')
local lock, meta, queue = KEYS[1], KEYS[2], KEYS[3]
local token, channel_prefix, epoch, way = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local seconds = time[1] - UNSET_CLOCK < 0 and time[1] + UNSET_CLOCK or time[1]
local now_us = seconds * 1000000 + time[2]
local now = (now_us - now_us % 1000) / 1000

-- The first members: if these are the count and a lease, that one ends first, and no permits are taken by the clock.
local first = pcall('ZRANGE', lock, '0', '1', 'WITHSCORES')
if first[1] ~= 'used' or not first[4] or first[4] - now <= 0 then return UNDECIDED end
local flags, permits = string.match(token, TERMS, TERMS_FROM)
local at = first[3] == token and first[4] or call('ZSCORE', lock, token)
if flags ~= 'h' and flags ~= 'hk' or not at or at - now <= 0 then return UNDECIDED end
local held, heads = -first[2] - permits, call('ZRANGE', queue, '0', '1') -- held: by other leases
local heir, alone = heads[1], string.sub(heads[2] or '+', 1, 1) == '+'
if not heir then
  if held == 0 then call('DEL', lock) else call('ZREM', lock, token, '#' .. token, '+' .. token) end
  if held > 0 then call('ZADD', lock, -held, 'used') end
  return GRANTED + RELEASE_QUEUE_EMPTY
end
-- What is rare is left to the general script, as in semaphore_acquire.
local known = call('HMGET', meta, 'seq', 'limits')
local last, most = tonumber(known[1] or nil), string.match(known[2] or '', ' (%d+):0:%d+$')
if not most or not last or last < now_us - now_us % epoch or last <= LEAST_FENCE then return UNDECIDED end
local stamp = last < now_us and #time[2] == 6 and seconds .. time[2] or string.format('%.0f', math.max(now_us, last + 1))
local heir_flags, wanted = string.match(heir, TERMS, TERMS_FROM)
local room = heir_flags == 'h' and most - held - wanted or -1
if room < 0 or room > 0 and not alone or held > 0 and call('ZSCORE', lock, heir) then return UNDECIDED end

-- Is the heir alive, and can it receive a message? The next waiter is told by the general script if a lease ends before its heartbeat.
local keeper, serial, ttl, claim_ttl = string.match(heir, TOKEN, TOKEN_FROM)
local lapse, claim = keeper and call('ZSCORE', queue, '+' .. heir), tonumber(claim_ttl)
local left = lapse and lapse - HEARTBEATS - now or 0
if left <= 0 or left + now >= UNSUBSCRIBED or string.sub(keeper, -#way) ~= way or not alone and (ttl == claim_ttl or left < claim / 2) then return UNDECIDED end
local other = held > 0 and not alone and (first[3] == token and call('ZRANGE', lock, '2', '2', 'WITHSCORES')[2] or first[4])
local _, _, next_ttl, next_claim = string.match(other and heads[2] or '', TOKEN, TOKEN_FROM)
if other and (not next_ttl or next_ttl == next_claim or other - now < next_claim / 2) then return UNDECIDED end
local channel = channel_prefix .. keeper
if pcall('PUBSUB', way == SHARDED and 'SHARDNUMSUB' or 'NUMSUB', channel)[2] == 0 then return UNDECIDED end

call('ZREM', queue, heir, '+' .. heir)
if held == 0 then call('DEL', lock) else call('ZREM', lock, token, '#' .. token, '+' .. token) end
local heir_until = left >= claim and now + claim or now < 1e12 and now + left or string.sub(lapse, 4)
call('ZADD', lock, '-' .. held + wanted, 'used', heir_until, heir, stamp, '#' .. heir)
if held == 0 or call('PEXPIRE', lock, claim_ttl, 'GT') == 0 then call('PEXPIRE', lock, claim_ttl, 'NX') end
call('HSET', meta, 'seq', stamp)
pcall(way == SHARDED and 'SPUBLISH' or 'PUBLISH', channel, serial .. ' ' .. stamp)
return GRANTED
