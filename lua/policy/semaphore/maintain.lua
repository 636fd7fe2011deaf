-- include: policy/leases/maintain
-- include: policy/semaphore/load_limits
-- include: policy/semaphore/save_limits
-- include: policy/semaphore/keep_window
local maintain_leases = maintain

-- Besides the leases it checks the callers, at most a thousand, and removes those from the queue that may not wait any more.
-- If the limits were lost with the metadata, those that this keeper knows are in force again, so that a release, which
-- knows none, can admit waiters.
local function maintain()
  maintain_leases()
  for token in pairs(callers) do
    local code = ineligible(token)
    if code then
      dequeue({token})
      rejected[token], head_stale = code, true
    end
  end
  if not limits and next(callers) then
    limits = policy_arg .. ' ' .. policy_arg
    call('HSET', meta, 'limits', limits)
    keep_lock(keep_window())
  end
  if pause_differs then save_limits(string.match(limits, '^(%S+) (%S+)')) end
end
