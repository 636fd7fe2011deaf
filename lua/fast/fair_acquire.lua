-- fair_acquire: takes a free fair lock that nobody waits for, or refuses it while somebody else holds it and nobody waits.
-- KEYS[1] lock     string: the holder's token, as SET token NX PX writes it, so that it expires at the very millisecond
-- KEYS[2] meta     hash: seq is the last fence; less than 0 while there may be tombstones
-- KEYS[3] queue    zset: the waiters
-- ARGV[1] token    of this request
-- ARGV[2] ttl      ms of the lease
-- ARGV[3] epoch    µs: see LONGEST_EPOCH, for which it is left out
-- returns the fence | less than 0: the lock is held for as many ms | UNDECIDED
-- writes KEYS[1..2]; work O(1). A refusal has tried to write, so it is none of a read-only server
-- include: lib/constants
local call, pcall = redis.call, redis.pcall
local lock, meta, queue = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, epoch = ARGV[1], ARGV[2], ARGV[3] or LONGEST_EPOCH

if call('EXISTS', queue) == 1 then return UNDECIDED end
if call('SET', lock, token, 'NX', 'PX', ttl) then
  -- The expiry says what time it is, at less cost than TIME: in ms, so it is not after any fence that was drawn before the metadata was
  -- lost. The general script draws the first one after that in µs.
  local now_us = (call('PEXPIRETIME', lock) - ttl) * 1000
  local last = tonumber(pcall('HGET', meta, 'seq'))
  -- One comparison finds what is rare: no metadata, tombstones, or the first fence of an epoch, which looks at the metadata's expiry.
  if last and last >= now_us - now_us % epoch and last > LEAST_FENCE then
    local fence = last < now_us and now_us or last + 1
    call('HSET', meta, 'seq', fence)
    return fence
  end
  call('DEL', lock)
  return UNDECIDED
end

local owner, left = call('GET', lock), call('PTTL', lock)
if owner and owner ~= token and left > 0 then
  -- Left to the general script: a lease that is longer than it may be, because the clock was set back, and one that its process
  -- retains (k).
  local _, _, asked, _, flags = string.match(owner, TOKEN, TOKEN_FROM)
  if flags ~= 'k' and left - (asked or left) <= 0 then return -left end
end
return UNDECIDED
