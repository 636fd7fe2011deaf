-- include: lib/clock
-- include: policy/leases/ends_at
-- include: policy/leases/keep_lock
local at = ends_at(token)
renewed = at ~= nil
if renewed and (exact or at < now + ttl) then
  -- The expiry is written first: a script that has written may continue when memory is full.
  keep_lock(ttl)
  call('ZADD', lock, now + ttl, token)
end
