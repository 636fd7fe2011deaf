-- mutex: one holder at a time. A newcomer takes a free mutex, also past the queue: throughput comes first. The lock is one
-- string key with the holder's token, as SET key token NX PX writes it, so that it expires at the very millisecond. The
-- fence of the lease in the key is seq. fair and redlock extend this policy.
-- include: lib/token
if not tombstones then
  if call('SET', lock, token, 'NX', 'PX', ttl) then
    -- include: policy/mutex/draw
  else
    -- include: policy/mutex/refuse
  end
end
