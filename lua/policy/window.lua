-- window: permits that return by the clock, when a window has passed, whatever becomes of the lease. The field window of the meta hash is
-- what window_acquire may rely on. If it is there, the key has only @tokens, each for one permit, and the newest was taken at the last
-- fence, when all that had returned were removed. If the window is full as well, it is the µs at which the oldest was taken.

-- returned is a bound of the scores of @tokens: permits with a larger one have returned. A window holds both of its ends.
local function returned(run)
  return run.per * 1000 - now_us
end

-- return_in is the ms until permits return that were taken at -score; 0 if they have.
local function return_in(run, score)
  return math.max(math.ceil((run.per * 1000 + 1 - score - now_us) / 1000), 0)
end

-- mark_window writes the field window after a grant, if it is true.
local function mark_window(run)
  if run.used > 0 or run.at_once < math.huge or call('ZCARD', lock) ~= run.spent + 1 then return end
  if call('ZCOUNT', lock, '-inf', string.format('%.0f', returned(run))) ~= run.spent then return end
  call('ZREM', lock, 'spent')
  local full = run.spent == run.window
  local oldest = full and call('ZRANGE', lock, TAKEN, '-inf', 'BYSCORE', 'REV', 'LIMIT', '0', '1', 'WITHSCORES')[2]
  call('HSET', meta, 'window', oldest and string.sub(oldest, 2) or '0')
end

-- take_now makes what an @token took at -score count as taken now. Without a lease, the score has been its fence as well.
local function take_now(member, score)
  local token = string.sub(member, 2)
  local _, holds = terms_of(token)
  if not holds then
    -- A key without counts has nothing but @tokens.
    local counts = call('ZMSCORE', lock, 'used', 'spent')
    if not counts[1] and not counts[2] then call('ZADD', lock, -call('ZCARD', lock), 'spent') end
    call('ZADD', lock, 'NX', -score, '#' .. token)
  end
  call('ZADD', lock, -now_us, member)
  call('HDEL', meta, 'window')
end

-- needs_before returns the permits that each of these waiters needs that return by the clock, if it is alive and can be granted them.
local function needs_before(run, tokens)
  local needs, reachable = {}, {}
  local lapses = #tokens > 0 and lapses_of(tokens) or {}
  for i, token in ipairs(tokens) do
    local need, holds, by_clock = terms_of(token)
    if by_clock and lapses[i] % UNSUBSCRIBED > now and not exceeds_limit(run, need, holds, by_clock) then
      local keeper = string.match(token, TOKEN, TOKEN_FROM)
      local counts = not run.callers[token] and lapses[i] < UNSUBSCRIBED
      if counts and reachable[keeper] == nil then reachable[keeper] = not run.unreachable[keeper] and subscribed(keeper) end
      if not counts or reachable[keeper] then needs[#needs + 1] = need end
    end
  end
  return needs
end

-- returns_in is a lower bound of the ms until a token can have its permits, as far as that depends on permits that return by
-- the clock: those that it and everyone before it need have to return first, after a pause. 0 if it is not known. One that exceeds the
-- limit learns that when there is any room. Of a long queue and of a crowded window it reads fifty entries each, and
-- estimates the rest from below: as nothing, where some of the fifty waiters are gone.
local function returns_in(run, token)
  local n, holds, by_clock = terms_of(token)
  if not by_clock or not run.at_once then return 0 end
  if run.window == math.huge then return run.pause_left end
  if exceeds_limit(run, n, holds, by_clock) then n = 1 end
  if not run.used then read_counts(run, 'used') end
  local rank = call('ZRANK', queue, token) or call('ZCOUNT', queue, '-inf', BEHIND_WAITERS)
  local ahead = rank > 0 and call('ZRANGE', queue, 0, math.min(rank, 50) - 1) or {}
  local needs, rest, total = needs_before(run, ahead), math.max(rank - 50, 0), n
  if #needs < #ahead then rest = 0 end
  for _, need in ipairs(needs) do total = total + need end
  total = total + rest
  if rest == 0 then needs[#needs + 1] = n end
  local free, at, i = run.window - run.spent, run.pause_left, 1
  local short = total - free
  if short <= 0 then return at end

  -- What returns, in order, as far as it is needed. What is taken meanwhile returns a window later.
  local list = call('ZRANGE', lock, TAKEN, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, math.min(short, 50), 'WITHSCORES')
  local returning = {}
  for k = 1, #list, 2 do
    returning[#returning + 1] = {return_in(run, list[k + 1]), (terms_of(list[k]))}
  end
  local complete = short <= 50 or #returning < 50
  for _, need in ipairs(needs) do
    while free < need and returning[i] do
      at, free, i = math.max(at, returning[i][1]), free + returning[i][2], i + 1
    end
    if free < need then break end
    free = free - need
    if complete then returning[#returning + 1] = {at + run.per + 1, need} end
  end
  if rest > 0 then at = at + math.max(math.ceil((rest + n) / run.window) - 1, 0) * (run.per + 1) end
  if rest > 0 or not complete then
    -- Of all these permits at most as many as the limit are taken in the last window, and in each one before. So those
    -- that remain were taken some windows earlier. If each @token takes one permit, this is exact.
    local all, windows = call('ZCOUNT', lock, '-inf', TAKEN), math.ceil(total / run.window)
    local r, first = total + all - windows * run.window, run.pause_left
    if r >= 1 then
      local last = call('ZRANGE', lock, all - r, all - r, 'WITHSCORES')
      first = math.max(first, math.ceil((-last[2] - now_us) / 1000) + run.per + 1)
    end
    at = math.max(at, first + (windows - 1) * (run.per + 1))
  end
  return at
end

-- quota returns the limit of the window, how many permits remain of it, at least, and the ms until all that are taken have returned. In a
-- pause none remains, and none has returned before its end. The number is exact if each request took one permit, or if at most a hundred
-- tokens are to be swept.
local function quota(run)
  local remaining = run.window - run.spent
  local out = run.spent > 0 and call('ZCOUNT', lock, string.format('%.0f', returned(run) + 1), TAKEN) or 0
  if out > 0 then
    remaining = remaining + out
    for _, member in ipairs(call('ZRANGE', lock, TAKEN, returned(run) + 1, 'BYSCORE', 'REV', 'LIMIT', 0, 100)) do
      remaining = remaining + terms_of(member) - 1
    end
  end
  local newest = run.spent > 0 and call('ZRANGE', lock, 0, 0, 'WITHSCORES')[2]
  local reset_after = math.max(newest and math.min(return_in(run, newest), run.per + 1) or 0, run.pause_left)
  return run.window, run.pause_left > 0 and 0 or math.max(remaining, 0), reset_after
end
