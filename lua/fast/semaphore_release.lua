-- semaphore_release: ends the lease of permits that are held and that nobody waits for.
-- KEYS[1] lock     zset: the leases, see lib/constants
-- KEYS[2] queue    zset: the waiters
-- ARGV[1] token    of the lease
-- returns GRANTED + RELEASE_QUEUE_EMPTY: the lease has ended | REFUSED + RELEASE_QUEUE_EMPTY: there was none | UNDECIDED: others wait, or
--         permits return by the clock
-- writes KEYS[1]; work O(log n)
-- include: lib/constants
local call, pcall = redis.call, redis.pcall
local lock, queue, token = KEYS[1], KEYS[2], ARGV[1]

local flags, permits = string.match(token, TERMS, TERMS_FROM)
if flags ~= 'h' and flags ~= 'hk' or call('EXISTS', queue) == 1 then return UNDECIDED end
local score = pcall('ZSCORE', lock, token)
if type(score) == 'table' then return score end -- the key has another type
if not score then
  call('ZREM', queue, '') -- it changes nothing, but fails on a read-only server, which must not say that there was no lease
  return REFUSED + RELEASE_QUEUE_EMPTY
end
-- The only lease is the token, its fence and the count of permits. It needs no time: see rwlock_release.
local members = call('ZCARD', lock)
if members == 3 and math.abs(score - call('PEXPIRETIME', lock)) <= 5 then
  call('DEL', lock)
  return GRANTED + RELEASE_QUEUE_EMPTY
end
local time = call('TIME')
local seconds = time[1] - UNSET_CLOCK < 0 and time[1] + UNSET_CLOCK or time[1]
local held = score - seconds * 1000 - math.floor(time[2] / 1000) > 0
if members > 3 then members = members - call('ZREM', lock, token, '#' .. token, '+' .. token) else members = 1 end
if members == 1 then
  call('DEL', lock)
elseif call('ZADD', lock, 'INCR', permits, 'used') == '0' then
  call('ZREM', lock, 'used')
end
return (held and GRANTED or REFUSED) + RELEASE_QUEUE_EMPTY
