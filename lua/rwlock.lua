-- rwlock: the policy of a lock that many may hold for reading or one for writing. The first letter of a token's flags
-- says what for: r to read; w to write, with the writer streak behind it; u to write in the place of a read lease of its
-- own; d to read in the place of a write lease.
-- In the queue an upgrade stands before all writers, and writers before all readers, each in order of arrival. The meta
-- hash has besides: streak, how many writers in a row have passed waiting readers; pass, the place up to which readers
-- go before the writers now; upgrade, the upgrade that waits, and its read lease.

-- part: base
-- include: leases.base
-- include: leases.plain
-- READERS is how much further back readers stand than writers.
local READERS = '4500000000000000'

-- use_of is what a token wants or holds the lock for.
local function use_of(token)
  return string.match(token, '^[^:]+:[^:]+:%d+%.%d+(%l)')
end

-- serial_of is which request of its keeper it is.
local function serial_of(token)
  return tonumber(string.match(token, '^[^:]+:([^:]+)'), 36)
end

local function writes(token)
  local use = use_of(token)
  return use ~= 'r' and use ~= 'd'
end

-- writer and readers: is it held for writing, or for reading? some: a lease that is held; alone: it is the only one.
-- Leases that are over are swept on the way.
local looked, writer, readers, some, alone
local function look()
  if looked then return end
  local list = call('ZRANGE', lock, 1, ENDLESS, 'BYSCORE', 'LIMIT', 0, 2, 'WITHSCORES')
  if list[1] and tonumber(list[2]) <= now then
    sweep()
    list = live(0, 2, 'WITHSCORES')
  end
  looked, some, alone = true, list[1], #list == 2
  writer = some ~= nil and writes(some)
  readers = some ~= nil and not writer
end

-- upgrade is the upgrade that waits, or has waited last, and its read lease; nil if that is over.
local function upgrade()
  local token, origin = string.match(call('HGET', meta, 'upgrade') or '', '^(%S+) (%S+)$')
  if token and ends_at(origin) then return token, origin end
end

-- supersede puts a lease in the place of another, which ends. It lasts for ms, and at least for what the other had left: a
-- holder that has not heard of it yet believes in that one.
local function supersede(origin, token, ms, fence, fresh)
  local asked = '^[^:]+:[^:]+:(%d+)'
  local left = (ends_at(origin) or now) - now
  local whole_ttl = (tonumber(call('ZSCORE', lock, '+' .. origin)) or 0) - BEYOND
  whole_ttl = math.max(tonumber(string.match(origin, asked)) or 0, whole_ttl)
  ms = math.max(tonumber(ms), math.min(left, whole_ttl))
  remove(origin)
  if ms > tonumber(string.match(token, asked)) then call('ZADD', lock, BEYOND + ms, '+' .. token) end
  put(token, ms, fence, fresh)
end

-- part: take
-- Wants token, ttl, life, the facts, and extra: the lease in whose place this one comes. Leaves fence: that of what was granted at once, or was held already; or nil.
-- Leaves opened: others may be let in now.
local use = use_of(token)
if (use == 'r' or use == 'w') and call('EXISTS', queue) == 0 then
  look()
  if not some or readers and use == 'r' then
    local next_fence = draw_fence()
    -- Unless it is there already.
    if call('ZADD', lock, 'NX', now + ttl, token, next_fence, '#' .. token) == 2 then
      keep_lock(ttl, not some)
      fence = next_fence
    end
  end
end
if not fence then
  fence = again(token, ttl)
  if fence then
    opened = use == 'd'
  elseif use == 'd' or use == 'u' then
    look()
    if not ends_at(extra) or use == 'd' and not writes(extra) then
      refusal = {REFUSED, now, 0, 0}
    elseif use == 'd' or alone then
      fence, opened, looked = draw_fence(), true, false
      supersede(extra, token, ttl, fence)
      -- A copy of its request may have put it in line.
      if use == 'u' and call('ZREM', queue, token) == 1 then call('ZREM', heartbeats, token) end
    else
      -- Of two attempts to upgrade the same lease the later one counts: the other is on its way out.
      local other, lease_of_other = upgrade()
      if other and (tonumber(call('ZSCORE', heartbeats, other)) or 0) > now then
        if lease_of_other ~= extra or serial_of(other) > serial_of(token) then refusal = {CONFLICT} end
      end
      if heartbeat_ttl > 0 and not refusal then
        -- The other one has lapsed, or is an earlier attempt to upgrade the same lease.
        if other and other ~= token and call('ZREM', queue, other) == 1 then call('ZREM', heartbeats, other) end
        call('HSET', meta, 'upgrade', token .. ' ' .. extra)
      end
    end
  end
end

-- part: drop
-- Wants token. Leaves had: GRANTED if the token held a lease, which is over now; else REFUSED. And ended.
-- include: clock
had = REFUSED
local score = pcall('ZSCORE', lock, token)
if type(score) == 'table' then
  wrong = score
else
  ended = ends_at(token, score or 0)
  -- Whoever gave up an upgrade or a downgrade has nothing else than this lease, and keeps it.
  if ended and ARGV[6] == '2' then return {HELD, 0} end
  if ended then had = GRANTED end
  remove(token)
end

-- part: extend
-- include: leases.extend

-- part: rest
-- include: leases.rest
-- MIXED: one that has to wait can keep others out who need not.
local MIXED = true
-- before: token -> what give has changed besides, for undo.
local before = {}

-- next_in_line is some of those whose turn it is now, in order; nil if nobody may run.
local next_in_line
function next_in_line()
  look()
  if writer then return nil end
  local head = call('ZRANGE', queue, 0, 0)
  if #head == 0 then return head end
  local use = use_of(head[1])
  if use == 'r' then return call('ZRANGE', queue, 0, 99) end
  if use == 'u' and upgrade() ~= head[1] then
    -- Its read lease is over, or another upgrade has come while this one was away.
    call('ZREM', queue, head[1])
    call('ZREM', heartbeats, head[1])
    changed = true
    return next_in_line()
  end
  if use == 'w' then
    local pass = call('HGET', meta, 'pass')
    if pass then
      local list = call('ZRANGE', queue, READERS, pass, 'BYSCORE', 'LIMIT', 0, 100)
      if #list > 0 then return list end
      call('HDEL', meta, 'pass')
    end
  end
  return head
end

-- fits_now: may this waiter have the lock, beside those who hold it now?
local function fits_now(use)
  look()
  if use == 'r' then return not writer end
  if use == 'u' then return alone and some == select(2, upgrade()) end
  return not some
end

-- passed counts a writer that goes before readers who wait, and lets them go first next time if there were too many.
local function passed(token)
  local list = call('ZRANGE', queue, '+inf', READERS, 'BYSCORE', 'REV', 'LIMIT', 0, 2, 'WITHSCORES')
  local last = token ~= trying and list[list[1] == trying and 4 or 2]
  local known = call('HMGET', meta, 'streak', 'pass')
  local streak, most = 0, tonumber(string.match(token, '(%d*)$')) or 0
  if last then streak = (tonumber(known[1]) or 0) + 1 end
  if most > 0 and streak >= most then
    call('HSET', meta, 'streak', 0, 'pass', last)
  elseif streak > 0 or known[1] and known[1] ~= '0' then
    call('HSET', meta, 'streak', streak)
  end
  return {streak = known[1] or 0, pass = known[2]}
end

-- give writes the grant of a waiter for ms and returns its fence.
local function give(token, ms, flags)
  local use, was, origin = string.sub(flags, 1, 1), {}, nil
  if use == 'u' then
    origin = select(2, upgrade())
    was = {
      origin = origin,
      at = call('ZSCORE', lock, origin),
      fence = call('ZSCORE', lock, '#' .. origin),
      longer = call('ZSCORE', lock, '+' .. origin),
    }
    call('HDEL', meta, 'upgrade')
  elseif use == 'w' then
    was = passed(token)
  end
  before[token] = was
  alone = use == 'u' or not some
  local fence = draw_fence()
  if origin then supersede(origin, token, ms, fence, true) else put(token, ms, fence, alone) end
  if alone then some = token end
  readers = use == 'r'
  writer = not readers
  return fence
end

-- undo takes a grant back that this script has written.
local function undo(token)
  local was = before[token]
  remove(token)
  if was.origin then
    call('ZADD', lock, was.at, was.origin, was.fence, '#' .. was.origin)
    if was.longer then call('ZADD', lock, was.longer, '+' .. was.origin) end
    keep_lock(was.at - now)
    call('HSET', meta, 'upgrade', token .. ' ' .. was.origin)
  elseif was.streak then
    call('HSET', meta, 'streak', was.streak)
    if was.pass then call('HSET', meta, 'pass', was.pass) else call('HDEL', meta, 'pass') end
  end
  looked = false
end

-- void is why this waiter may not come back any more, a code, or nil: an upgrade may not when its read lease is over, or
-- when another has come while it was away, for each would wait for the other's read lease.
local function ineligible(token)
  if use_of(token) ~= 'u' then return nil end
  local known = upgrade()
  if known == token then return nil end
  return known and CONFLICT or REFUSED
end

-- ends is when room may come by itself, in ms from now; 0 if there is nobody to wait for. An upgrade does not wait for
-- the lease that it comes in the place of.
local function ends()
  local last = call('ZRANGE', lock, ENDLESS, '(' .. now, 'BYSCORE', 'REV', 'LIMIT', 0, 2, 'WITHSCORES')
  if last[3] and last[1] == select(2, upgrade()) then return last[4] - now end
  return last[2] and last[2] - now or 0
end

-- fits is fits_now. If the first in line still has to wait for others, now that a lease has been given up that was to last
-- longer than theirs, then room comes by itself sooner than it was told.
local function fits(flags)
  local may = fits_now(string.sub(flags, 1, 1))
  if ended and not may and now + ends() < ended then changed = true end
  return may
end

-- place is where in the queue a newcomer with this ticket stands, or a try, which passes nobody; ticket_of is the way
-- back.
local function place(ticket, token, try)
  local use = use_of(token)
  if try or use == 'r' then return ticket + READERS end
  return use == 'u' and math.floor(ticket / 1000) or ticket
end
local function ticket_of(at)
  if at < 100000000000000 then return at * 1000 end
  return at > tonumber(READERS) and at - READERS or at
end

-- lease, holders, mend: there is nothing but leases.
local function lease(token)
  return held_lease(token)
end
local function holders(from, most)
  return held_leases(from, most)
end
local function maintain()
  maintain_leases()
end
