-- mutex_renew: makes a lease that is still held last until ttl from now at least. It never restores one that has ended.
-- KEYS[1] lock     string: the holder's token. It is the only key, so that leases are renewed while a cluster moves the slot
-- ARGV[1] token    of the lease
-- ARGV[2] ttl      ms from now to the lease's new end; never sooner than its present one, because this may be a late copy
-- returns GRANTED | REFUSED
-- writes KEYS[1]; work O(1)
-- include: lib/constants
local owner = redis.pcall('GET', KEYS[1])
if type(owner) == 'table' then return owner end -- the key has another type
if owner ~= ARGV[1] then return REFUSED end
if redis.call('PEXPIRE', KEYS[1], ARGV[2], 'GT') == 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2], 'NX') end
return GRANTED
