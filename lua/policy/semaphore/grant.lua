-- include: lib/fence
-- include: policy/semaphore/terms
-- include: policy/semaphore/enter
-- include: policy/semaphore/remove

-- batch is how many tokens next_in_line has returned, if nobody else waits, and granted_of_batch how many were granted then.
-- exhausted: these were all of them, so nobody waits.
local batch, granted_of_batch, exhausted = nil, 0, false

-- earlier_leases, earlier_takings: token -> the score of what it has already: an unconfirmed lease, or what it was granted before
-- a late copy of its request arrived. undo_data: token -> the score of what it took by the clock earlier.
local earlier_leases, earlier_takings, undo_data = {}, {}, {}

-- It replaces what the token had earlier. When permits return by the clock, or others hold leases that can end before this one, then
-- the first waiter needs a new retry time.
local function write_grant(token, ms, flags, number)
  local n, holds, by_clock = terms(flags, number)
  if earlier_leases[token] or earlier_takings[token] then remove(token, true) end
  undo_data[token] = holds and earlier_takings[token]
  local fence = next_fence()
  enter(token, ms, fence, n, holds, by_clock)
  granted_of_batch = granted_of_batch + 1
  head_stale = head_stale or by_clock or used > n
  return fence
end

local function write_grants()
  write_entered()
  exhausted = granted_of_batch == batch
end
