-- mutex_release: ends a lease that nobody waits for.
-- KEYS[1] lock     string: the holder's token
-- KEYS[2] queue    zset: the waiters
-- ARGV[1] token    of the lease
-- returns GRANTED + RELEASE_QUEUE_EMPTY: the lease has ended | REFUSED + RELEASE_QUEUE_EMPTY: there was none | UNDECIDED: others wait
-- writes KEYS[1]; work O(1)
-- include: lib/constants
local call, pcall = redis.call, redis.pcall
local lock, queue, token = KEYS[1], KEYS[2], ARGV[1]

if call('EXISTS', queue) == 1 then return UNDECIDED end
local owner = pcall('GET', lock)
if owner == token then
  call('DEL', lock)
  return GRANTED + RELEASE_QUEUE_EMPTY
end
if type(owner) == 'table' then return owner end -- the key has another type
call('ZREM', queue, '') -- it changes nothing, but fails on a read-only server, which must not say that there was no lease
return REFUSED + RELEASE_QUEUE_EMPTY
