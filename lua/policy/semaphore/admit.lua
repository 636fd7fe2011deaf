-- include: lib/fence
-- include: policy/semaphore/terms
-- include: policy/semaphore/load_limits
-- include: policy/semaphore/counts
-- include: policy/semaphore/exceeds
-- include: policy/semaphore/enter
-- include: policy/semaphore/sweep
-- include: policy/semaphore/frees_in
local WAITERS_DIFFER = true

-- undo_data: token -> the score of what it took by the clock earlier.
local undo_data = {}

local function ineligible(token)
  if at_once and exceeds_limit(terms_of(token)) then return ABOVE_LIMIT end
end

-- After the limit has changed, the first waiter is also returned if it may not wait any more.
local function next_in_line()
  if not at_once then return nil end
  if not used then read_counts('used') end
  if has_room(1, true, true) then
    return call('ZRANGE', queue, 0, math.min(at_once - used, window - spent, 100) - 1)
  end
  local heads = limits_changed > 0 and call('ZRANGE', queue, 0, 0)
  return heads and heads[1] and ineligible(heads[1]) and heads
end

local function fits(flags, number)
  return has_room(tonumber(number) or 0, string.find(flags, 'h', 1, true) ~= nil, string.find(flags, 'c', 1, true) ~= nil)
end

-- It replaces what the token had earlier: an unconfirmed lease, or what it was granted before a late copy of its request
-- arrived. When permits return by the clock, or others hold leases that can end before this one, then the first waiter needs
-- a new retry time.
local function write_grant(token, ms)
  local n, holds, by_clock = terms_of(token)
  local scores = call('ZMSCORE', lock, token, '@' .. token)
  if scores[1] or scores[2] then remove(token, true) end
  undo_data[token] = holds and scores[2]
  local fence = next_fence()
  enter(token, ms, fence, n, holds, by_clock)
  head_stale = head_stale or by_clock or used > n
  return fence
end

-- write_grant has written everything.
local write_grants

local function undo_grant(token)
  remove(token, true)
  if undo_data[token] then
    spent = spent + terms_of(token)
    call('ZADD', lock, undo_data[token], '@' .. token, -spent, 'spent')
    keep_lock(keep_window())
  end
end
