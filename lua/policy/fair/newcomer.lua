-- fair: a mutex that goes to its waiters in order of arrival. A newcomer takes it only if nobody waits.
-- include: lib/token
-- include: lib/clock
if call('EXISTS', queue) == 0 then
  if call('SET', lock, token, 'NX', 'PX', ttl) then
    -- include: lib/draw
    if drawn then return drawn end
    call('DEL', lock)
  elseif not max_wait then
    -- include: policy/mutex/refuse
  end
end
