-- Wants held_until: when the lease ends that the token holds already, because a copy of its request was granted; or nil. The
-- lease lasts for ttl from now at least.
-- include: policy/leases/keep_lock
-- include: policy/leases/fence_of
if held_until then
  if held_until < now + ttl then
    call('ZADD', lock, now + ttl, token)
    keep_lock(ttl)
  end
  fence = fence_of(token)
end
