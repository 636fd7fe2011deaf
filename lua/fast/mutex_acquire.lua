-- mutex_acquire: takes a free lock, or refuses it while somebody else holds it. Of a mutex it does so past the queue; of a fair lock, which
-- names its queue, only while nobody waits.
-- KEYS[1] lock     string: the holder's token, as SET token NX PX writes it, so that it expires at the very millisecond
-- KEYS[2] meta     hash: seq is the last fence; less than 0 while there may be tombstones
-- KEYS[3] queue    zset: the waiters; only of a fair lock
-- ARGV[1] token    of this request
-- ARGV[2] ttl      ms of the lease
-- ARGV[3] epoch    µs: see LONGEST_EPOCH, for which it is left out
-- returns the fence | less than 0: the lock is held for as many ms | UNDECIDED
-- writes KEYS[1..2]; work O(1). A refusal has tried to write, so it is none of a read-only server
-- include: lib/constants
local call, pcall = redis.call, redis.pcall
local lock, meta, queue = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, epoch = ARGV[1], ARGV[2], ARGV[3] or LONGEST_EPOCH
if queue and call('EXISTS', queue) == 1 then return UNDECIDED end

local last = tonumber(pcall('HGET', meta, 'seq'))
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
-- Two comparisons find what is rare: no metadata, tombstones, or the first fence of an epoch, which looks at the metadata's expiry; and
-- a clock that is not set.
local usual = last and last >= now_us - now_us % epoch and now_us > LEAST_FENCE
if usual and call('SET', lock, token, 'NX', 'PX', ttl) then
  if last >= now_us then
    call('HSET', meta, 'seq', last + 1)
    return last + 1
  end
  -- A string is cheaper to send than a number, which the server formats.
  call('HSET', meta, 'seq', #time[2] == 6 and time[1] .. time[2] or now_us)
  return now_us
end

local owner, left = call('GET', lock), call('PTTL', lock)
if owner and owner ~= token and left > 0 then
  -- Left to the general script: a lease that is longer than it may be, because the clock was set back.
  local _, _, asked = string.match(owner, TOKEN, TOKEN_FROM)
  if left - (asked or left) <= 0 then
    -- It changes nothing, but fails on a read-only server, which must not say that the lock is held.
    if not usual then call('HDEL', meta, '') end
    return -left
  end
end
return UNDECIDED
