-- both_acquire: takes permits that are held, and that return by the clock as well, if nobody waits and there is room after hardly any
-- sweeping.
-- KEYS[1] lock     zset: the leases and what was taken, see lib/constants
-- KEYS[2] meta     hash: seq is the last fence, less than 0 while there may be tombstones; limits, see policy/limits
-- KEYS[3] queue    zset: the waiters
-- ARGV[1] token    of this request, with the flags hc
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

-- What is rare is left to the general script, as by semaphore_acquire.
local known = call('HMGET', meta, 'seq', 'limits')
local last = tonumber(known[1] or 0) or 0
if last <= LEAST_FENCE or last >= now_us or last < now_us - now_us % epoch or known[2] ~= limits .. ' ' .. limits then return UNDECIDED end
local flags, permits = string.match(token, TERMS, TERMS_FROM)
local most_held, most_taken, window_ms = string.match(limits, '^(%d+):(%d+):(%d+)$')
if flags ~= 'hc' or not most_held then return UNDECIDED end

local n, counts = permits + 0, call('ZMSCORE', lock, 'used', 'spent', token, '@' .. token)
local held, taken = n - (counts[1] or 0), n - (counts[2] or 0)
if counts[3] or counts[4] or held - most_held > 0 or taken - most_taken > 0 or held % SWEEP_EVERY < n or taken % SWEEP_EVERY < n then return UNDECIDED end
-- Without a count the key may have only permits that return by the clock; it must not exist then.
if call('EXISTS', lock, queue) ~= ((counts[1] or counts[2]) and 1 or 0) then return UNDECIDED end
call('HSET', meta, 'seq', now_us_text)
call('ZADD', lock, '-' .. now_us_text, '@' .. token, now_us_text, '#' .. token, now + ttl, token, -held, 'used', -taken, 'spent')
local keep = math.max(ttl, window_ms + math.min(window_ms, 60000)) + 1000
if call('PEXPIRE', lock, keep, 'GT') == 0 then call('PEXPIRE', lock, keep, 'NX') end
return now_us
