-- rwlock_release: ends a lease of a lock that nobody waits for.
-- KEYS[1] lock     zset: the leases, see lib/constants
-- KEYS[2] queue    zset: the waiters
-- ARGV[1] token    of the lease
-- returns GRANTED + RELEASE_QUEUE_EMPTY: the lease has ended | REFUSED + RELEASE_QUEUE_EMPTY: there was none | UNDECIDED: others wait
-- writes KEYS[1]; work O(log n)
-- include: lib/constants
local call, pcall = redis.call, redis.pcall
local lock, queue, token = KEYS[1], KEYS[2], ARGV[1]

if call('EXISTS', queue) == 1 then return UNDECIDED end
local score = pcall('ZSCORE', lock, token)
if type(score) == 'table' then return score end -- the key has another type
-- The only lease is the token and its fence. It needs no time: while the key exists, the lease has not ended, if the key expires when it
-- ends. On Redis 7.0 the time advances within a script, so the key may expire some ms later than the lease that was written
-- with it. Nobody else has been granted a lease meanwhile: that would have removed this one.
if score and call('ZCARD', lock) == 2 and math.abs(score - call('PEXPIRETIME', lock)) <= 5 then
  call('DEL', lock)
  return GRANTED + RELEASE_QUEUE_EMPTY
end
local time = call('TIME')
local seconds = time[1] - UNSET_CLOCK < 0 and time[1] + UNSET_CLOCK or time[1]
local held = score and score - seconds * 1000 - math.floor(time[2] / 1000) > 0 and score - ENDLESS <= 0
call('ZREM', lock, token, '#' .. token, '+' .. token)
return (held and GRANTED or REFUSED) + RELEASE_QUEUE_EMPTY
