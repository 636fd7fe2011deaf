-- fair: a mutex that goes to its waiters in order of arrival. A newcomer takes it only if nobody waits.
-- include: lib/fence
if call('EXISTS', queue) == 0 and call('SET', lock, token, 'NX', 'PX', ttl) then fence = next_fence() end
