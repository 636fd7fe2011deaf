-- rwlock_acquire: takes a read or a write lease of a free lock, or a read lease beside readers, if nobody waits; or refuses the lock
-- while a writer holds it. While anybody waits, every newcomer joins the queue, in which writers are before readers.
-- KEYS[1] lock     zset: the leases
-- KEYS[2] meta     hash: seq is the last fence; less than 0 while there may be tombstones
-- KEYS[3] queue    zset: the waiters
-- ARGV[1] token    of this request, which reads (r) or writes (w)
-- ARGV[2] ttl      ms of the lease
-- ARGV[3] epoch    µs: see LONGEST_EPOCH, for which it is left out
-- returns the fence | less than 0: the lock is held for as many ms | UNDECIDED
-- writes KEYS[1..2]; work O(log n)
-- include: lib/constants
local call, pcall = redis.call, redis.pcall
local lock, meta, queue = KEYS[1], KEYS[2], KEYS[3]
local token, ttl, epoch = ARGV[1], ARGV[2], ARGV[3] or LONGEST_EPOCH
local time = call('TIME')
local seconds = time[1] - UNSET_CLOCK < 0 and time[1] + UNSET_CLOCK or time[1]
local now_us = seconds * 1000000 + time[2]
local now = (now_us - now_us % 1000) / 1000
-- Most readers are told by the last letter of their tokens, at less cost.
local purpose = string.sub(token, -1) == 'r' and 'r' or string.match(token, FLAG, FLAG_FROM)
if purpose ~= 'r' and purpose ~= 'w' then return UNDECIDED end

local keys = call('EXISTS', lock, queue)
if keys > 0 then
  -- If one of the keys exists, and it is the lock's, nobody waits. The lease that ends first says who holds it; if it has
  -- expired, it is to be swept.
  local first = keys == 1 and call('ZRANGE', lock, '1', ENDLESS, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES') or {}
  local holder, left = first[1], first[2] and math.ceil(first[2] - now) or 0
  if left <= 0 then return UNDECIDED end
  local read = (string.match(holder, FLAG, FLAG_FROM) == 'r') ~= (first[2] % 1 > 0)
  if not read and holder ~= token then
    local _, _, asked = string.match(holder, TOKEN, TOKEN_FROM)
    if left - (asked or left) > 0 then return UNDECIDED end
    call('ZREM', queue, '') -- it changes nothing, but fails on a read-only server, which must not say that the lock is held
    return -left
  end
  if not read or purpose ~= 'r' then return UNDECIDED end
end

-- One comparison finds what is rare: no metadata, tombstones, or the first fence of an epoch, which looks at the metadata's expiry.
local last = tonumber(pcall('HGET', meta, 'seq'))
if not last or last < now_us - now_us % epoch or last <= LEAST_FENCE then return UNDECIDED end
local fence = last < now_us and now_us or last + 1
-- A string is cheaper to send than a number, which the server formats.
local text = fence == now_us and #time[2] == 6 and seconds .. time[2] or fence
-- It adds nothing if the token holds the lock already.
if call('ZADD', lock, 'NX', now + ttl, token, text, '#' .. token) ~= 2 then return UNDECIDED end
call('HSET', meta, 'seq', text)
if keys == 0 then
  call('PEXPIRE', lock, ttl)
elseif call('PEXPIRE', lock, ttl, 'GT') == 0 then
  call('PEXPIRE', lock, ttl, 'NX')
end
return fence
