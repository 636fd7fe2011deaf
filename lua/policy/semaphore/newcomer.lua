-- The short forms: nobody waits, and there is room after hardly any sweeping; or the request is for permits that return by the
-- clock, and the oldest has not returned.
-- include: lib/clock
-- include: policy/semaphore/state
if not tombstones then
  -- include: policy/semaphore/short
  if ready and flags == 'h' then
    -- include: policy/semaphore/hold
  elseif ready and flags == 'c' then
    -- include: policy/semaphore/take
    if retry_after then return -retry_after end
  elseif ready and flags == 'hc' then
    -- include: policy/semaphore/both
  end
  if drawn then return drawn end
end
