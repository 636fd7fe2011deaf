-- semaphore: so many permits may be held at once, or taken in any window of time, or both: see limits and window, which belong to this
-- policy. The flags of a token say what it does with its permits:
--   h  it holds them until its lease ends. A token without h has no lease; it is known for as long as its permits are taken
--   c  it takes them by the clock: they return when a window has passed, whatever becomes of the lease
--   b  after c alone: its process has taken the permits ahead, to grant them to its callers
-- In run, besides those of limits:
--   used, spent   the permits that are held, and taken by the clock, with what is granted and not written yet; nil: not read yet
--   first_end     when the lease ends that ends first; nil: unknown
--   swept, sweeps  nothing is left to sweep; how often this script has swept
--   unwritten     scores and members that are granted and not written yet; unwritten_ms: for how many ms they are kept; fresh: whether
--                 the key has nothing else
--   batch, granted_of_batch  how many tokens next_in_line has returned, if nobody else waits, and how many were granted then
--   exhausted     these were all of them, so nobody waits
--   earlier_leases, earlier_takings  token -> the score of what it has already: an unconfirmed lease, or what it was granted before a
--                 late copy of its request arrived
--   undo_data     token -> the score of what it took by the clock earlier

-- terms_of is how many permits a token is about, whether it holds them, and whether it takes them by the clock.
local function terms_of(token)
  local flags, number = string.match(token, TERMS, TERMS_FROM)
  if not flags then return 0, false, false end
  return tonumber(number), string.find(flags, 'h', 1, true) ~= nil, string.find(flags, 'c', 1, true) ~= nil
end

-- read_counts reads used and spent. It returns the score of a token's lease and of what it took by the clock.
local function read_counts(run, token)
  local counts = call('ZMSCORE', lock, 'used', 'spent', token, '@' .. token)
  run.used, run.spent = -(counts[1] or 0), -(counts[2] or 0)
  if not counts[1] and not counts[2] then run.spent = call('ZCARD', lock) end
  return tonumber(counts[3] or nil), tonumber(counts[4] or nil)
end

-- full says whether so many permits may not be had now, the expired ones included that are not swept yet.
local function full(run, n, holds, by_clock)
  return holds and run.used + n > run.at_once or by_clock and (run.spent + n > run.window or run.pause_left > 0)
end

-- drop removes members, and writes the counts, which do not include them any more. With the last lease and the last @token the key goes.
local function drop(run, members)
  run.longest, run.first_end = nil, nil
  if run.used + run.spent == 0 then return call('DEL', lock) end
  local counts = {}
  if run.used > 0 then
    counts = {-run.used, 'used'}
  else
    members[#members + 1] = 'used'
    load_limits(run)
    if run.per then call('PEXPIRE', lock, keep_window(run), 'LT') end
  end
  if run.spent > 0 then
    counts[#counts + 1] = -run.spent
    counts[#counts + 1] = 'spent'
    call('HDEL', meta, 'window')
  else
    members[#members + 1] = 'spent'
  end
  call('ZREM', lock, unpack(members))
  call('ZADD', lock, unpack(counts))
end

-- remove ends a token's lease; one that was never used also returns what it took by the clock. It says whether there was something
-- that had not expired.
local function remove(run, token, never_used)
  local n, holds = terms_of(token)
  if n == 0 then return false end
  local counts = pcall('ZMSCORE', lock, 'used', 'spent', token, '@' .. token)
  if counts.err then
    run.type_error = counts
    return false
  end
  -- The key's counts do not include what is granted and not written yet.
  if not run.used then
    run.used, run.spent = -(counts[1] or 0), -(counts[2] or 0)
    if not counts[1] and not counts[2] then run.spent = call('ZCARD', lock) end
  end
  local lease, taken = counts[3], never_used and counts[4]
  if not lease and not taken then return false end
  if lease then run.used = run.used - n end
  if taken then
    run.spent = run.spent - n
    call('HDEL', meta, 'window')
  end
  drop(run, {token, '#' .. token, '+' .. token, taken and '@' .. token or nil})
  if lease then return lease + 0 > now end
  return not holds
end

-- sweep removes up to a hundred expired leases, and up to a hundred @tokens whose permits have returned. An @token in the
-- future, since the clock was set back, is moved to the present; its fence stays.
local function sweep(run)
  local first = run.used > 0 and call('ZRANGE', lock, '1', ENDLESS, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')[2]
  local expired, out, gone = {}, {}, {}
  run.first_end = tonumber(first or nil)
  if run.first_end and run.first_end <= now then
    expired, run.first_end = call('ZRANGE', lock, '1', now, 'BYSCORE', 'LIMIT', '0', '100'), nil
  end
  if run.spent > 0 then out = call('ZRANGE', lock, TAKEN, returned(run) + 1, 'BYSCORE', 'REV', 'LIMIT', '0', '100') end
  run.swept = #expired < 100 and #out < 100
  for _, token in ipairs(expired) do
    run.used = run.used - terms_of(token)
    gone[#gone + 1] = token
    gone[#gone + 1] = '#' .. token
    gone[#gone + 1] = '+' .. token
  end
  for _, member in ipairs(out) do
    local token = string.sub(member, 2)
    local n, holds = terms_of(token)
    run.spent = run.spent - n
    gone[#gone + 1] = member
    if not holds then gone[#gone + 1] = '#' .. token end
  end
  local newest = run.spent > 0 and tonumber(call('ZRANGE', lock, '0', '0', 'WITHSCORES')[2])
  if newest and newest < -now_us then
    local ahead = call('ZRANGE', lock, '-inf', -now_us - 1, 'BYSCORE', 'LIMIT', '0', '100', 'WITHSCORES')
    run.swept = run.swept and #ahead < 200
    for i = 1, #ahead, 2 do
      take_now(ahead[i], ahead[i + 1])
    end
  end
  if #gone > 0 then drop(run, gone) end
end

-- has_room says whether so many permits may be had now. If it seems not, it sweeps, at most twice in a script.
local function has_room(run, n, holds, by_clock)
  while full(run, n, holds, by_clock) do
    if run.swept then return false end
    if run.sweeps == 2 then
      run.unswept = true
      return false
    end
    run.sweeps = (run.sweeps or 0) + 1
    sweep(run)
  end
  return true
end

-- enter grants a lease of ms, and what it takes by the clock, to a token of which the key has nothing.
local function enter(run, token, ms, fence)
  local n, holds, by_clock = terms_of(token)
  if not run.unwritten then run.unwritten, run.unwritten_ms, run.fresh = {}, 0, run.used + run.spent == 0 end
  local list, i = run.unwritten, #run.unwritten
  local score = fence_text(fence)
  if holds then
    list[i + 1], list[i + 2], i = now + ms, token, i + 2
    run.used, run.unwritten_ms = run.used + n, math.max(run.unwritten_ms, ms)
  end
  if by_clock then
    list[i + 1], list[i + 2], i = fence == now_us and '-' .. score or -now_us, '@' .. token, i + 2
    run.spent, run.unwritten_ms = run.spent + n, math.max(run.unwritten_ms, keep_window(run))
  end
  if holds or fence ~= now_us then list[i + 1], list[i + 2] = score, '#' .. token end
end

-- write_entered writes it.
local function write_entered(run)
  local list = run.unwritten
  if not list then return end
  if run.used > 0 then list[#list + 1], list[#list + 2] = -run.used, 'used' end
  if run.spent > 0 then list[#list + 1], list[#list + 2] = -run.spent, 'spent' end
  call('ZADD', lock, unpack(list))
  if run.window < math.huge then call('HDEL', meta, 'window') end
  keep_lock(run, run.unwritten_ms, run.fresh)
  run.unwritten, run.first_end = nil, nil
end

-- For the first waiter it is also when a lease ends.
local function frees_in(run, token)
  load_limits(run)
  if token then return returns_in(run, token) end
  local head = run.window and (run.window < math.huge or run.pause_left > 0) and call('ZRANGE', queue, '0', '0')[1]
  local ms = head and returns_in(run, head) or 0
  if ms > 0 then return ms end
  local first = call('ZRANGE', lock, '(' .. now, ENDLESS, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')[2]
  run.first_end = run.first_end or tonumber(first or nil)
  return run.first_end and run.first_end - now or 0
end

-- A request is certain to be refused if no lease has expired, no permit is taken by the clock, and all permits are taken, or too many and
-- nobody else waits.
local function blocked_for(_, token, policy_arg)
  local flags, permits = string.match(token, TERMS, TERMS_FROM)
  local most = string.match(policy_arg, '^(%d+):0:')
  if flags ~= 'h' or not most or permits - most > 0 then return nil end
  if call('HGET', meta, 'limits') ~= policy_arg .. ' ' .. policy_arg then return nil end
  -- If the first two members are the count and a lease, then that ends first.
  local first = call('ZRANGE', lock, '0', '1', 'WITHSCORES')
  if first[1] ~= 'used' or not first[4] or first[4] - now <= 0 or call('ZSCORE', lock, token) then return nil end
  local left = most + first[2]
  if left > 0 and (left - permits >= 0 or call('EXISTS', queue) == 1) then return nil end
  return first[4] - now
end

local function ask(run, token, ttl, _, max_wait)
  local n, holds, by_clock = terms_of(token)
  local lease_score, clock_score = read_counts(run, token)
  local frees = adopt_limits(run)
  if holds and lease_score and lease_score > now then return GRANTED, prolong(run, token, ttl, lease_score), frees end
  if not holds and clock_score and clock_score <= returned(run) then
    return GRANTED, tonumber(call('ZSCORE', lock, '#' .. token) or -clock_score), frees
  end
  if exceeds_limit(run, n, holds, by_clock) then return ABOVE_LIMIT end
  if call('EXISTS', queue) == 1 then return nil end
  if (run.used + n) % SWEEP_EVERY < n or (run.spent + n) % SWEEP_EVERY < n then sweep(run) end
  if has_room(run, n, holds, by_clock) then
    -- This replaces what the token had earlier, which may be in use until now.
    if lease_score or clock_score then remove(run, token, true) end
    local fence = next_fence(run)
    enter(run, token, tonumber(ttl), fence)
    write_entered(run)
    if not holds and n == 1 then mark_window(run) end
    return GRANTED, fence, frees
  end
  if not max_wait and not holds and not run.unswept and run.limits_changed == 0 then return REFUSED, frees_in(run, token) end
end

-- Permits that would have returned by the clock are available sooner than the first waiter was told.
local function end_lease(run, token, cancel)
  local ended = remove(run, token, cancel == '1')
  run.head_stale = run.head_stale or ended and cancel == '1'
  return ended and GRANTED or REFUSED
end

local WAITERS_DIFFER = true

-- read_earlier reads what these tokens have already.
local function read_earlier(run, tokens)
  run.earlier_leases, run.earlier_takings = {}, {}
  local leases, takings = run.used > 0 and call('ZMSCORE', lock, unpack(tokens)) or {}, {}
  if run.spent > 0 then
    local members = {}
    for i, token in ipairs(tokens) do members[i] = '@' .. token end
    takings = call('ZMSCORE', lock, unpack(members))
  end
  for i, token in ipairs(tokens) do
    run.earlier_leases[token], run.earlier_takings[token] = leases[i], takings[i]
  end
end

local function ineligible(run, token)
  load_limits(run)
  if run.at_once and exceeds_limit(run, terms_of(token)) then return ABOVE_LIMIT end
end

-- After the limit has changed, the first waiter is also returned if it may not wait any more.
local function next_in_line(run)
  load_limits(run)
  run.batch, run.earlier_leases, run.earlier_takings = nil, {}, {}
  if not run.at_once or run.exhausted then return nil end
  if not run.used then read_counts(run, 'used') end
  if has_room(run, 1, true, true) then
    local most = math.min(run.at_once - run.used, run.window - run.spent, 100)
    local heads = first_waiters(most)
    if #heads <= most then run.batch, run.granted_of_batch = #heads, 0 end
    heads[most + 1] = nil
    if #heads > 0 and run.used + run.spent > 0 then read_earlier(run, heads) end
    return heads
  end
  local heads = run.limits_changed > 0 and call('ZRANGE', queue, '0', '0')
  return heads and heads[1] and ineligible(run, heads[1]) and heads
end

local function fits(run, flags, number)
  local n, holds, by_clock = terms_of(flags .. number)
  return has_room(run, n, holds, by_clock)
end

-- It replaces what the token had earlier. When permits return by the clock, or others hold leases that can end before this one, then
-- the first waiter needs a new retry time.
local function write_grant(run, token, ms)
  local n, holds, by_clock = terms_of(token)
  if run.earlier_leases[token] or run.earlier_takings[token] then remove(run, token, true) end
  run.undo_data = run.undo_data or {}
  run.undo_data[token] = holds and run.earlier_takings[token]
  local fence = next_fence(run)
  enter(run, token, ms, fence)
  if run.batch then run.granted_of_batch = run.granted_of_batch + 1 end
  run.head_stale = run.head_stale or by_clock or run.used > n
  return fence
end

local function write_grants(run)
  write_entered(run)
  run.exhausted = run.batch ~= nil and run.granted_of_batch == run.batch
end

local function undo_grant(run, token)
  remove(run, token, true)
  run.exhausted = false
  if run.undo_data[token] then
    run.spent = run.spent + terms_of(token)
    call('ZADD', lock, run.undo_data[token], '@' .. token, -run.spent, 'spent')
    keep_lock(run, keep_window(run))
  end
end

-- A token without a lease has one in effect for as long as its permits are taken. The waiter learns of its grant only now, since the
-- message was lost; permits by the clock count as taken now, so that they return that much later.
local function lease_of(run, token)
  load_limits(run)
  local _, holds, by_clock = terms_of(token)
  local score = by_clock and tonumber(call('ZSCORE', lock, '@' .. token) or nil)
  local taken = score and (not run.per or score <= returned(run))
  local fence, lease_end
  if holds then
    fence, lease_end = lease_in_set(run, token)
  elseif taken then
    local _, _, _, claim_ttl = string.match(token, TOKEN, TOKEN_FROM)
    fence, lease_end = tonumber(call('ZSCORE', lock, '#' .. token) or -score), now + claim_ttl
  end
  if fence and taken then
    take_now('@' .. token, score)
    keep_lock(run, run.per and keep_window(run) or 0)
  end
  return fence, lease_end
end

-- Besides the leases it checks the callers, at most a thousand, and removes those from the queue that may not wait any more. If the limits
-- were lost with the metadata, those that this keeper knows are in force again, so that a release, which knows none, can admit waiters.
local function maintain(run)
  cut_leases(run)
  for token in pairs(run.callers) do
    local code = ineligible(run, token)
    if code then
      dequeue({token})
      run.rejected[token], run.head_stale = code, true
    end
  end
  local known, in_force = load_limits(run)
  if not run.limits and next(run.callers) then
    save_limits(run, run.policy_arg, run.policy_arg)
    keep_lock(run, keep_window(run))
  elseif run.pause_differs then
    save_limits(run, known, in_force)
  end
end

-- Where nothing is held, or by_clock is set, these are the tokens whose permits have not returned.
local function holders(run, after, token, count, by_clock)
  load_limits(run)
  if not by_clock and not (run.at_once and run.at_once == math.huge) then return held_leases(after, token, count) end
  if not run.per then return {}, 0 end
  local member = token == '' and '' or '@' .. token
  local list, all, fences = page(returned(run), -9007199254740991, after, member, count), {}, {}
  for i = 1, #list, 2 do fences[#fences + 1] = '#' .. string.sub(list[i], 2) end
  if #list > 0 then fences = call('ZMSCORE', lock, unpack(fences)) end
  for i = 1, #list, 2 do
    local score = tonumber(list[i + 1])
    all[#all + 1] = {string.sub(list[i], 2), tonumber(fences[(i + 1) / 2] or nil) or -score, return_in(run, score), score}
  end
  return all, call('ZCOUNT', lock, '-inf', string.format('%.0f', returned(run)))
end
