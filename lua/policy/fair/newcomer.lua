-- fair: a mutex that goes to its waiters in order of arrival. A newcomer takes it only if nobody waits.
-- include: lib/token
if not tombstones and call('EXISTS', queue) == 0 then
  if call('SET', lock, token, 'NX', 'PX', ttl) then
    -- include: policy/mutex/draw
  else
    -- include: policy/mutex/refuse
  end
end
