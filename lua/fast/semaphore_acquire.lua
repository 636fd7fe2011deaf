-- semaphore_acquire: takes permits that are held, if nobody waits and there is room after hardly any sweeping.
-- KEYS[1] lock     zset: the leases, see lib/constants
-- KEYS[2] meta     hash: seq is the last fence, less than 0 while there may be tombstones; limits, see policy/limits
-- KEYS[3] queue    zset: the waiters
-- ARGV[1] token    of this request, with the flags h alone
-- ARGV[2] ttl      ms of the lease
-- ARGV[3] limits   as the caller knows them
-- ARGV[4] epoch    µs: see LONGEST_EPOCH, for which it is left out
-- returns the fence | UNDECIDED
-- writes KEYS[1..2]; work O(log n)
-- include: lib/constants
local call = redis.call
local lock, meta, queue = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, limits, epoch = ARGV[1], ARGV[2], ARGV[3], ARGV[4] or LONGEST_EPOCH
local time = call('TIME')
local seconds = time[1] - UNSET_CLOCK < 0 and time[1] + UNSET_CLOCK or time[1]
local now_us = seconds * 1000000 + time[2]
local now_us_text = #time[2] == 6 and seconds .. time[2] or string.format('%.0f', now_us)
local now = (now_us - now_us % 1000) / 1000

-- This finds what is rare: no metadata, tombstones, a clock that was set back, the first fence of an epoch, which looks at the metadata's
-- expiry, and limits that another caller knows, or a pause.
local known = call('HMGET', meta, 'seq', 'limits')
local last = tonumber(known[1] or 0) or 0
if last <= LEAST_FENCE or last >= now_us or last < now_us - now_us % epoch or known[2] ~= limits .. ' ' .. limits then return UNDECIDED end
local flags, permits = string.match(token, TERMS, TERMS_FROM)
if flags ~= 'h' then return UNDECIDED end

local most, used, keys = string.match(limits, '^%d+'), permits, call('EXISTS', lock, queue)
if keys > 0 then
  -- If there is no count, then the one key is the queue, or has only permits that return by the clock.
  local counts = keys == 1 and call('ZMSCORE', lock, 'used', token) or {}
  if not counts[1] or counts[2] then return UNDECIDED end
  used = permits - counts[1]
  if used % SWEEP_EVERY < permits + 0 then return UNDECIDED end
end
if used - most > 0 then return UNDECIDED end
call('HSET', meta, 'seq', now_us_text)
call('ZADD', lock, now_us_text, '#' .. token, now + ttl, token, '-' .. used, 'used')
if keys == 0 or call('PEXPIRE', lock, ttl, 'GT') == 0 then call('PEXPIRE', lock, ttl, 'NX') end
return now_us
