-- leases_renew: makes a lease that is still held last until ttl from now at least. It never restores one that has ended.
-- KEYS[1] lock     zset: the leases, see lib/constants. It is the only key, so that leases are renewed while a cluster moves the slot
-- ARGV[1] token    of the lease
-- ARGV[2] ttl      ms from now to the lease's new end; never sooner than its present one, because this may be a late copy
-- returns GRANTED, to which RENEW_CONVERTED is added if the lease was converted | REFUSED
-- writes KEYS[1]; work O(log n)
-- include: lib/constants
local call = redis.call
local lock, token, ttl = KEYS[1], ARGV[1], ARGV[2]
local at = tonumber(call('ZSCORE', lock, token) or 0)
local time = call('TIME')
local seconds = time[1] - UNSET_CLOCK < 0 and time[1] + UNSET_CLOCK or time[1]
local now = seconds * 1000 + math.floor(time[2] / 1000)
if at <= now or at > tonumber(ENDLESS) then return REFUSED end
if at < now + ttl then
  -- The expiry is written first: a script that has written may continue when memory is full.
  if call('PEXPIRE', lock, ttl, 'GT') == 0 then call('PEXPIRE', lock, ttl, 'NX') end
  call('ZADD', lock, now + ttl - at % 1, token)
end
return at % 1 > 0 and GRANTED + RENEW_CONVERTED or GRANTED
