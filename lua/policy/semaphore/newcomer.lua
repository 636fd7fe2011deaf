-- The short form: the caller knows the limits, nobody waits, and there is room without a sweep. A sweep is due each time that a
-- count passes a multiple of 16, so that expired permits do not pile up where there is always room.
-- include: lib/clock
-- include: policy/semaphore/terms
-- include: policy/semaphore/limits
-- include: policy/semaphore/counts
-- include: policy/semaphore/enter
local n, holds, by_clock = terms_of(token)
local lease_score, clock_score = read_counts(token)
local known, in_force = string.match(call('HGET', meta, 'limits') or '', '^(%S+) (%S+)$')
local sweep_due = math.floor(used / 16) < math.floor((used + n) / 16) or math.floor(spent / 16) < math.floor((spent + n) / 16)
if known == policy_arg then
  set_limits(in_force)
  if not heartbeats and not lease_score and not clock_score and not sweep_due and not full(n, holds, by_clock) then
    if call('EXISTS', queue) == 0 then
      -- include: lib/draw
      if drawn then
        enter(token, ttl, drawn, n, holds, by_clock)
        return drawn
      end
    end
  end
end
