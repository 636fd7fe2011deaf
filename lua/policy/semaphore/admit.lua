-- include: lib/first_waiters
-- include: policy/semaphore/grant
-- include: policy/semaphore/load_limits
-- include: policy/semaphore/counts
-- include: policy/semaphore/exceeds
-- include: policy/semaphore/sweep
-- include: policy/semaphore/frees_in
local WAITERS_DIFFER = true

-- read_earlier reads what these tokens have already.
local function read_earlier(tokens)
  earlier_leases, earlier_takings = {}, {}
  local leases, takings = used > 0 and call('ZMSCORE', lock, unpack(tokens)) or {}, {}
  if spent > 0 then
    local members = {}
    for i, token in ipairs(tokens) do members[i] = '@' .. token end
    takings = call('ZMSCORE', lock, unpack(members))
  end
  for i, token in ipairs(tokens) do
    earlier_leases[token], earlier_takings[token] = leases[i], takings[i]
  end
end

local function ineligible(token)
  if at_once and exceeds_limit(terms_of(token)) then return ABOVE_LIMIT end
end

-- After the limit has changed, the first waiter is also returned if it may not wait any more.
local function next_in_line()
  batch = nil
  if not at_once or exhausted then return nil end
  if not used then read_counts('used') end
  if has_room(1, true, true) then
    local most = math.min(at_once - used, window - spent, 100)
    local heads = first_waiters(most)
    if #heads <= most then batch, granted_of_batch = #heads, 0 end
    heads[most + 1] = nil
    if #heads > 0 and used + spent > 0 then read_earlier(heads) end
    return heads
  end
  local heads = limits_changed > 0 and call('ZRANGE', queue, '0', '0')
  return heads and heads[1] and ineligible(heads[1]) and heads
end

local function fits(flags, number)
  return has_room(terms(flags, number))
end

local function undo_grant(token)
  remove(token, true)
  exhausted = false
  if undo_data[token] then
    spent = spent + terms_of(token)
    call('ZADD', lock, undo_data[token], '@' .. token, -spent, 'spent')
    keep_lock(keep_window())
  end
end
