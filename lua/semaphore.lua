-- semaphore: the policy of permits: so many may be held at once, or taken in any window of time, or both. The letters of
-- a token's flags say what it does with its permits: h: it holds them until its lease is over; c: it takes them for the
-- time of a window, after which they return by the clock, whatever becomes of the lease. A token without h has no lease;
-- it is known for as long as its permits are away.
-- Beside the leases the lock's key has, under scores that no lease has:
--   @token  BEYOND_ALL + the server's ms at which permits were taken that return by the clock
--   used    minus the permits of all leases in the key, of those too that are over and not yet swept
--   spent   minus the permits of all @tokens in it, likewise
-- The meta hash has limits: two times <at once>:<in a window>:<ms of the window>, with 0 for what is not limited: first as
-- the last caller knew them, then as they are in force, which SetLimit may have made others.

-- part: base
-- include: leases.base
local BEYOND_ALL = 8500000000000000
local at_once, window, per
local used, spent

-- hold_to sets the limits; none are known if the text has none.
local function hold_to(text)
  local a, w, ms = string.match(text or '', '^(%d+):(%d+):(%d+)$')
  if not a then return end
  at_once, window, per = tonumber(a), tonumber(w), tonumber(ms)
  if at_once == 0 then at_once = math.huge end
  if window == 0 then window = math.huge end
end

-- terms_of is how many permits a token is about, whether it holds them, and whether they return by the clock.
local function terms_of(token)
  local flags, n = string.match(token, '^[^:]+:[^:]+:%d+%.%d+(%l*)(%d*)$')
  if not flags then return 0, false, false end
  return tonumber(n) or 0, string.find(flags, 'h', 1, true) ~= nil, string.find(flags, 'c', 1, true) ~= nil
end

-- above: there are never so many.
local function above(n, holds, by_clock)
  return holds and n > at_once or by_clock and n > window
end

-- look reads the counts, and the scores of a token's lease and of what it took.
local function look(token)
  local c = call('ZMSCORE', lock, 'used', 'spent', token, '@' .. token)
  used, spent = -(tonumber(c[1]) or 0), -(tonumber(c[2]) or 0)
  return tonumber(c[3]), tonumber(c[4])
end

-- count notes what is to be written of a count: one that is 0 goes, so that the key goes with its last member.
local function count(name, n, add, gone)
  if n > 0 then
    add[#add + 1] = -n
    add[#add + 1] = name
  else
    gone[#gone + 1] = name
  end
end

local function write(add, gone)
  if #gone > 0 then
    call('ZREM', lock, unpack(gone))
    longest = 0
  end
  if #add > 0 then call('ZADD', lock, unpack(add)) end
end

-- enter writes what a token is granted of which nothing is in the key: a lease of ms, and what it takes.
local function enter(token, ms, next_fence)
  local n, holds, by_clock = terms_of(token)
  local add, fresh = {next_fence, '#' .. token}, used + spent == 0
  local keep = 0
  if holds then
    used, keep = used + n, tonumber(ms)
    add[3], add[4], add[5], add[6] = now + ms, token, -used, 'used'
  end
  if by_clock then
    spent, keep = spent + n, math.max(keep, per)
    local i = #add
    add[i + 1], add[i + 2], add[i + 3], add[i + 4] = BEYOND_ALL + now, '@' .. token, -spent, 'spent'
  end
  call('ZADD', lock, unpack(add))
  keep_lock(keep, fresh)
end

-- remove ends a token's lease; one that was never used gives back, too, what would return by the clock. It says whether
-- there was something that was not over.
local function remove(token, never_used)
  local c = pcall('ZMSCORE', lock, token, '@' .. token, 'used', 'spent')
  if c.err then
    wrong = c
    return false
  end
  local n, holds = terms_of(token)
  local add, gone = {}, {}
  used, spent = -(tonumber(c[3]) or 0), -(tonumber(c[4]) or 0)
  if c[1] then
    gone = {token, '#' .. token, '+' .. token}
    used = used - n
    count('used', used, add, gone)
  end
  local back = c[2] and never_used
  if back then
    gone[#gone + 1] = '@' .. token
    if not holds then gone[#gone + 1] = '#' .. token end
    spent = spent - n
    count('spent', spent, add, gone)
  end
  write(add, gone)
  if holds then return c[1] and tonumber(c[1]) > now end
  return back
end

-- sweep takes out up to a hundred leases that are over, and up to a hundred takings whose permits have returned. A taking
-- that lies in the future, because the clock was set back, is moved to the present. Clean says that nothing is left of
-- these.
local clean
local function sweep()
  local over = call('ZRANGE', lock, 1, now, 'BYSCORE', 'LIMIT', 0, 100)
  local back = spent > 0 and call('ZRANGE', lock, BEYOND_ALL, BEYOND_ALL + now - per - 1, 'BYSCORE', 'LIMIT', 0, 100) or {}
  clean = #over < 100 and #back < 100
  local add, gone = {}, {}
  for _, token in ipairs(over) do
    used = used - terms_of(token)
    gone[#gone + 1] = token
    gone[#gone + 1] = '#' .. token
    gone[#gone + 1] = '+' .. token
  end
  for _, mark in ipairs(back) do
    local token = string.sub(mark, 2)
    local n, holds = terms_of(token)
    spent = spent - n
    gone[#gone + 1] = mark
    if not holds then gone[#gone + 1] = '#' .. token end
  end
  if #over > 0 then count('used', used, add, gone) end
  if #back > 0 then count('spent', spent, add, gone) end
  if spent > 0 then
    local ahead = call('ZRANGE', lock, '+inf', string.format('(%.0f', BEYOND_ALL + now), 'BYSCORE', 'REV', 'LIMIT', 0, 100)
    clean = clean and #ahead < 100
    for _, mark in ipairs(ahead) do
      add[#add + 1] = BEYOND_ALL + now
      add[#add + 1] = mark
    end
  end
  write(add, gone)
end

-- room says whether so many permits may be had now. If it seems not, it sweeps, twice in a script at the most.
local sweeps = 0
local function room(n, holds, by_clock)
  while holds and used + n > at_once or by_clock and spent + n > window do
    if clean then return false end
    if sweeps == 2 then
      unswept = true
      return false
    end
    sweeps = sweeps + 1
    sweep()
  end
  return true
end

-- part: take
-- Wants token, ttl, idle, life, the facts, and extra: the limits that the caller knows of. Leaves fence: that of what was
-- granted at once, or was taken already; or nil. Leaves opened: others may be let in now, since the limits have changed.
local n, holds, by_clock = terms_of(token)
local leased, taken = look(token)
local known, force = string.match(limits or '', '^(%S+) (%S+)$')
if known ~= extra then
  if known then opened, limits_changed = true, 2 end
  force, limits = extra, extra .. ' ' .. extra
  call('HSET', meta, 'limits', limits)
  call('PEXPIRE', meta, idle, 'NX')
end
hold_to(force)
-- What was taken under a shorter window now returns later.
if limits_changed > 0 or not known then keep_lock(per) end
if holds then
  fence = leased and again(token, ttl)
elseif taken and taken - BEYOND_ALL + per >= now then
  fence = tonumber(call('ZSCORE', lock, '#' .. token))
end
if not fence then
  if above(n, holds, by_clock) then
    refusal = {ABOVE_LIMIT}
  elseif call('EXISTS', queue) == 0 then
    -- What is over is swept now and then, also where there is always room.
    if math.floor(used / 16) < math.floor((used + n) / 16) or math.floor(spent / 16) < math.floor((spent + n) / 16) then
      sweep()
    end
    if room(n, holds, by_clock) then
      -- Of what it had earlier, which may be in use until now, this takes the place.
      if leased or taken then remove(token, true) end
      fence = draw_fence()
      enter(token, ttl, fence)
    end
  end
end

-- part: drop
-- Wants token and unused. Leaves had: GRANTED if the token held something, which is over now; else REFUSED. And opened:
-- others may be let in sooner.
-- include: clock
had = remove(token, unused) and GRANTED or REFUSED
-- Permits that would have returned by the clock are there sooner than the first in line was told.
opened = unused and had == GRANTED

-- part: extend
-- include: leases.extend

-- part: limit
-- Wants limit: the limit from now on, or 0. It changes that of the window, if the caller knows of one.
look('used')
if limit > 0 then
  local known = string.match(limits or '', '^(%S+)') or extra
  local a, w = at_once, window
  if string.match(extra, '^%d+:0:') then a = limit else w = limit end
  if w < math.huge and per == 0 then per = tonumber(string.match(extra, '%d+$')) end
  limits_changed = (a ~= at_once or w ~= window) and 2 or 0
  at_once, window = a, w
  if a == math.huge then a = 0 end
  if w == math.huge then w = 0 end
  call('HSET', meta, 'limits', string.format('%s %.0f:%.0f:%.0f', known, a, w, per))
  keep_lock(per)
end
room(math.huge, true, true)

-- part: rest
-- include: leases.rest
-- MIXED: one that has to wait can keep others out who need not.
local MIXED = true
if not at_once then hold_to(string.match(limits or '', ' (%S+)$') or extra) end

-- void is why this waiter may not wait any more: the limit was lowered below what it asks for.
local function ineligible(token)
  if at_once and above(terms_of(token)) then return ABOVE_LIMIT end
end

-- mend: besides the leases, it looks at those who beat, and takes them out of line if they may not wait any more; there are
-- at most a thousand of them. If the limits were lost with the facts, those that who heartbeats knows of are in force again, so
-- that a release, which knows of none, can admit somebody.
local function maintain()
  maintain_leases()
  for token in pairs(asking) do
    local why = ineligible(token)
    if why then
      call('ZREM', queue, token)
      call('ZREM', heartbeats, token)
      rejected[token], changed = why, true
    end
  end
  if not limits and next(asking) then
    limits = extra .. ' ' .. extra
    call('HSET', meta, 'limits', limits)
    keep_lock(per)
  end
end

-- next_in_line is those who may be first in line, as many as there can be room for; nil if there is none. When the limit
-- has just become another, it is also a first who may not wait any more.
local function next_in_line()
  if not at_once then return nil end
  if not used then look('used') end
  if room(1, true, true) then
    return call('ZRANGE', queue, 0, math.min(at_once - used, window - spent, 100) - 1)
  end
  local heads = limits_changed > 0 and call('ZRANGE', queue, 0, 0)
  return heads and heads[1] and ineligible(heads[1]) and heads
end

-- fits: may this waiter have its permits now?
local function fits(flags, permits)
  return room(tonumber(permits) or 0, string.find(flags, 'h', 1, true) ~= nil, string.find(flags, 'c', 1, true) ~= nil)
end

-- before: token -> the score of what it took earlier, for undo.
local before = {}

-- give writes the grant of a waiter for ms and returns its fence. It takes the place of what the token had earlier: a
-- claim that was not confirmed, or what it was granted before a late copy of its request came. When permits return by the
-- clock, or others hold leases that can be over before this one, who is first in line then has to know when.
local function give(token, ms)
  local n, holds, by_clock = terms_of(token)
  local had = call('ZMSCORE', lock, token, '@' .. token)
  if had[1] or had[2] then remove(token, true) end
  before[token] = holds and had[2]
  local next_fence = draw_fence()
  enter(token, ms, next_fence)
  changed = changed or by_clock or used > n
  return next_fence
end

-- undo takes a grant back that this script has written.
local function undo(token)
  remove(token, true)
  if before[token] then
    spent = spent + terms_of(token)
    call('ZADD', lock, before[token], '@' .. token, -spent, 'spent')
    keep_lock(per)
  end
end

-- lease is the fence and the end of the token's lease, or nil. What has no lease is as good as a new one for as long as
-- its permits are away. A waiter learns of its grant only now, since the message was lost: by the clock its permits are
-- taken now, so that they return that much later.
local function lease(token)
  local _, holds, by_clock = terms_of(token)
  local at = by_clock and tonumber(call('ZSCORE', lock, '@' .. token) or nil)
  local away = at and at - BEYOND_ALL + (per or 0) >= now
  local learned, till
  if holds then
    learned, till = held_lease(token)
  elseif away then
    learned = tonumber(call('ZSCORE', lock, '#' .. token))
    till = now + select(4, string.match(token, TERMS))
  end
  if learned and away then
    call('ZADD', lock, BEYOND_ALL + now, '@' .. token)
    keep_lock(per or 0)
  end
  return learned, till
end

-- sure is for how many ms from now a token cannot have its permits, because those that it and everyone before it need
-- have to return by the clock first; 0 if that is not known. One that asks for more than there ever is learns that when
-- there is any room. Of a long queue and of a crowded window it looks at fifty each, and takes the rest for as little as
-- it can be: for nothing, where some of the fifty are not there.
local function earliest(token)
  local n, held, by_clock = terms_of(token)
  if not by_clock or not at_once or window == math.huge then return 0 end
  if above(n, held, by_clock) then n = 1 end
  if not used then look('used') end
  local rank = call('ZRANK', queue, token) or call('ZCARD', queue)
  local needs, total, rest, there = {}, 0, math.max(rank - 50, 0), {}
  local ahead = rank > 0 and call('ZRANGE', queue, 0, math.min(rank, 50) - 1) or {}
  local lapse = rank > 0 and call('ZMSCORE', heartbeats, unpack(ahead)) or {}
  for i, other in ipairs(ahead) do
    local need, held, returns = terms_of(other)
    if returns and not above(need, held, returns) and lapse[i] and tonumber(lapse[i]) > now then
      local keeper, _, _, _, flags = string.match(other, TERMS)
      local counts = asking[other]
      if not counts then
        if there[keeper] == nil then there[keeper] = reachable(keeper, flags) end
        counts = there[keeper]
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
  local free, at, i = window - spent, 0, 1
  local short = total - free
  if short <= 0 then return 0 end

  -- What returns, in order, as far as it is needed; those who take meanwhile give back a window later.
  local list = call('ZRANGE', lock, BEYOND_ALL, '+inf', 'BYSCORE', 'LIMIT', 0, math.min(short, 50), 'WITHSCORES')
  local back = {}
  for k = 1, #list, 2 do
    back[#back + 1] = {math.max(list[k + 1] - BEYOND_ALL + per + 1 - now, 0), (terms_of(string.sub(list[k], 2)))}
  end
  local whole = short <= 50 or #back < 50
  for _, need in ipairs(needs) do
    while free < need and back[i] do
      at, free, i = back[i][1], free + back[i][2], i + 1
    end
    if free < need then break end
    free = free - need
    if whole then back[#back + 1] = {at + per + 1, need} end
  end
  if rest > 0 then at = at + math.max(math.ceil((rest + n) / window) - 1, 0) * (per + 1) end
  if rest > 0 or not whole then
    -- Of all these permits at most as many as the limit are taken in the last window, and in each one before. So those
    -- that are left were taken some windows earlier. If each takes one permit, this is exact.
    local all, windows = call('ZCOUNT', lock, BEYOND_ALL, '+inf'), math.ceil(total / window)
    local r = total + all - windows * window
    if r >= 1 then
      local last = call('ZRANGE', lock, all - r, all - r, 'REV', 'WITHSCORES')
      at = math.max(at, last[2] - BEYOND_ALL - now + windows * (per + 1))
    else
      at = math.max(at, (windows - 1) * (per + 1))
    end
  end
  return at
end

-- ends is when room may come by itself, in ms from now: for a token, as far as that goes by the clock; for the first in
-- line, also when a lease is over; 0 if that is not known.
local function ends(token)
  if token then return earliest(token) end
  local head = call('ZRANGE', queue, 0, 0)[1]
  local ms = head and earliest(head) or 0
  if ms > 0 then return ms end
  local first = live(0, 1, 'WITHSCORES')
  return first[2] and first[2] - now or 0
end

-- place is where in the queue a newcomer with this ticket stands; ticket_of is the way back.
local function place(ticket)
  return ticket
end
local function ticket_of(at)
  return at
end

-- holders is some of them: token, fence, ms left; or, where nothing is held, those whose permits have not returned.
local function holders(from, most)
  if not at_once or at_once < math.huge then return held_leases(from, most) end
  local list = call('ZRANGE', lock, BEYOND_ALL + now - per, '+inf', 'BYSCORE', 'LIMIT', from, most, 'WITHSCORES')
  local all = {}
  for i = 1, #list, 2 do
    local token = string.sub(list[i], 2)
    local left = list[i + 1] - BEYOND_ALL + per + 1 - now
    all[#all + 1] = {token, tonumber(call('ZSCORE', lock, '#' .. token)) or 0, left}
  end
  return all
end
