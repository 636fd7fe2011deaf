-- leases_renew: makes a lease that is still held last until ttl from now at least. It never restores one that has ended.
-- KEYS[1] lock     zset: the leases, see lib/constants. It is the only key, so that leases are renewed while a cluster moves the slot
-- ARGV[1] token    of the lease
-- ARGV[2] ttl      ms from now to the lease's new end; never sooner than its present one, because this may be a late copy
-- returns GRANTED | RECALLED: as GRANTED, of a lease that its process retains (k), and that was recalled | REFUSED
-- writes KEYS[1]; work O(log n)
-- include: lib/constants
local call = redis.call
local lock, token, ttl = KEYS[1], ARGV[1], ARGV[2]
local at = tonumber(call('ZSCORE', lock, token) or 0)
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if at <= now or at > tonumber(ENDLESS) then return REFUSED end
if at < now + ttl then
  -- The expiry is written first: a script that has written may continue when memory is full.
  if call('PEXPIRE', lock, ttl, 'GT') == 0 then call('PEXPIRE', lock, ttl, 'NX') end
  call('ZADD', lock, now + ttl, token)
end
if string.find(token, 'k%d*$', -11) and call('ZSCORE', lock, '#' .. token) - RETAINED < 0 then return RECALLED end
return GRANTED
