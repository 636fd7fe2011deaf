-- fair: a mutex that goes to its waiters in order of arrival.

-- may_take says whether a newcomer may take the free lock: only if nobody waits.
local function may_take()
  return call('EXISTS', queue) == 0
end
