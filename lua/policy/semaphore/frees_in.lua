-- include: lib/token
-- include: lib/queue
-- include: lib/lapses_of
-- include: lib/reachable
-- include: policy/semaphore/terms
-- include: policy/semaphore/returned
-- include: policy/semaphore/counts
-- include: policy/semaphore/exceeds
-- include: policy/leases/scores

-- returns_in is a lower bound of the ms until a token can have its permits, as far as that depends on permits that return by
-- the clock: those that it and everyone before it need have to return first, after a pause. 0 if it is not known. One that exceeds the
-- limit learns that when there is any room. Of a long queue and of a crowded window it reads fifty entries each, and
-- estimates the rest from below: as nothing, where some of the fifty waiters are gone.
local function returns_in(token)
  local n, holds, by_clock = terms_of(token)
  if not by_clock or not at_once then return 0 end
  if window == math.huge then return pause_left end
  if exceeds_limit(n, holds, by_clock) then n = 1 end
  if not used then read_counts('used') end
  local rank = call('ZRANK', queue, token) or call('ZCOUNT', queue, '-inf', BEHIND_WAITERS)
  local needs, total, rest, keeper_reachable = {}, 0, math.max(rank - 50, 0), {}
  local ahead = rank > 0 and call('ZRANGE', queue, 0, math.min(rank, 50) - 1) or {}
  local lapse = rank > 0 and lapses_of(ahead) or {}
  for i, other in ipairs(ahead) do
    local need, other_holds, other_by_clock = terms_of(other)
    local alive = lapse[i] > now
    if other_by_clock and not exceeds_limit(need, other_holds, other_by_clock) and alive then
      local keeper, _, _, _, flags = string.match(other, TOKEN, -199)
      local counts = callers[other]
      if not counts then
        if keeper_reachable[keeper] == nil then keeper_reachable[keeper] = reachable(keeper, flags) end
        counts = keeper_reachable[keeper]
      end
      if counts then
        needs[#needs + 1] = need
        total = total + need
      end
    end
  end
  if #needs < #ahead then rest = 0 end
  if rest == 0 then needs[#needs + 1] = n end
  total = total + rest + n
  local free, at, i = window - spent, pause_left, 1
  local short = total - free
  if short <= 0 then return at end

  -- What returns, in order, as far as it is needed. What is taken meanwhile returns a window later.
  local list = call('ZRANGE', lock, TAKEN, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, math.min(short, 50), 'WITHSCORES')
  local returning = {}
  for k = 1, #list, 2 do
    returning[#returning + 1] = {return_in(list[k + 1]), (terms_of(list[k]))}
  end
  local complete = short <= 50 or #returning < 50
  for _, need in ipairs(needs) do
    while free < need and returning[i] do
      at, free, i = math.max(at, returning[i][1]), free + returning[i][2], i + 1
    end
    if free < need then break end
    free = free - need
    if complete then returning[#returning + 1] = {at + per + 1, need} end
  end
  if rest > 0 then at = at + math.max(math.ceil((rest + n) / window) - 1, 0) * (per + 1) end
  if rest > 0 or not complete then
    -- Of all these permits at most as many as the limit are taken in the last window, and in each one before. So those
    -- that remain were taken some windows earlier. If each @token takes one permit, this is exact.
    local all, windows = call('ZCOUNT', lock, '-inf', TAKEN), math.ceil(total / window)
    local r, first = total + all - windows * window, pause_left
    if r >= 1 then
      local last = call('ZRANGE', lock, all - r, all - r, 'WITHSCORES')
      first = math.max(first, math.ceil((-last[2] - now_us) / 1000) + per + 1)
    end
    at = math.max(at, first + (windows - 1) * (per + 1))
  end
  return at
end

-- For the first waiter it is also when a lease ends.
local function frees_in(token)
  if token then return returns_in(token) end
  local head = window and (window < math.huge or pause_left > 0) and call('ZRANGE', queue, '0', '0')[1]
  local ms = head and returns_in(head) or 0
  if ms > 0 then return ms end
  first_end = first_end or tonumber(call('ZRANGE', lock, '(' .. now, ENDLESS, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')[2] or nil)
  return first_end and first_end - now or 0
end
