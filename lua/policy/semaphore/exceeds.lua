-- include: policy/semaphore/state

-- exceeds_limit says whether there are never so many permits.
local function exceeds_limit(n, holds, by_clock)
  return holds and n > at_once or by_clock and n > window
end
