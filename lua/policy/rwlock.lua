-- rwlock: many may hold the lock for reading, or one for writing. The first letter of a token's flags is its purpose:
--   r  to read
--   w  to write; its number is the maximum writer streak, 0: unlimited
--   u  an upgrade: that a lease which reads writes from its grant on. It has no lease of its own; its number counts the upgrades that its
--      keeper has begun
-- Leases with an r read; those with a w, and those of other libraries, which have no purpose, write; a converted one does the other, see
-- lib/constants. In the queue an upgrade is before all writers, and writers before all readers, each in order of arrival; see place.
-- Fields of the meta hash:
--   streak   the writers in a row that have passed waiting readers
--   pass     the place up to which readers go before the next writer
--   upgrade  the tokens of the upgrade that was asked for last and of its lease
-- In run, valid if state_known is true:
--   writer_holds, readers_hold  whether the lock is held for writing, or for reading
--   holder, holder_until        one of the leases, or nil, and when it ends
--   sole                        there is no other
-- and of what admit does:
--   alone      nobody waits but the head of the queue, so no readers are passed
--   unwritten  scores and members of the leases that write_grant has left to write_grants; unwritten_ms: how long they last at most
--   fresh      there is no lease but these
--   undo_data  token -> what write_grant has changed besides the lease

-- purpose_of is a token's purpose.
local function purpose_of(token)
  return string.match(token, FLAG, FLAG_FROM)
end

-- UPGRADES_FIRST is by what an upgrade's ticket is divided.
local UPGRADES_FIRST = 1000

local function place(ticket, token, try)
  local purpose = purpose_of(token)
  if try or purpose == 'r' then return ticket + READERS, true end
  return purpose == 'u' and math.floor(ticket / UPGRADES_FIRST) or ticket
end

local function ticket_of(at)
  if at < 100000000000000 then return at * UPGRADES_FIRST end
  return at > tonumber(READERS) and at - READERS or at
end

-- remove removes a lease. With the last one the key goes, and its expiry.
local function remove(run, token)
  call('ZREM', lock, token, '#' .. token, '+' .. token)
  run.longest = nil
end

-- put writes a lease of ms. fresh says that there is no other.
local function put(run, token, ms, fence, fresh)
  call('ZADD', lock, now + ms, token, fence_text(fence), '#' .. token)
  keep_lock(run, ms, fresh)
end

-- writes says whether a lease that ends at this score is for writing.
local function writes(token, score)
  return (purpose_of(token) ~= 'r') ~= (score % 1 > 0)
end

-- mark makes a lease that ends at this score write, or read. It lasts as long as before.
local function mark(run, token, score, to_write)
  call('ZREM', lock, '') -- which a full memory does not refuse: a script that has written may continue
  local converted = (purpose_of(token) ~= 'r') ~= to_write
  call('ZADD', lock, math.ceil(score) - (converted and CONVERTED or 0), token)
  run.state_known = false
end

-- convert is mark with a new fence, which it returns.
local function convert(run, token, score, to_write)
  local fence = next_fence(run)
  mark(run, token, score, to_write)
  call('ZADD', lock, fence_text(fence), '#' .. token)
  return fence
end

-- read_state reads who holds the lock. If there are expired leases, it sweeps up to a hundred of them.
local function read_state(run)
  if run.state_known then return end
  local list = call('ZRANGE', lock, '1', ENDLESS, 'BYSCORE', 'LIMIT', '0', '2', 'WITHSCORES')
  if list[1] and tonumber(list[2]) <= now then
    for _, token in ipairs(call('ZRANGE', lock, '1', now, 'BYSCORE', 'LIMIT', '0', '100')) do remove(run, token) end
    list = call('ZRANGE', lock, '(' .. now, ENDLESS, 'BYSCORE', 'LIMIT', '0', '2', 'WITHSCORES')
  end
  run.state_known, run.holder, run.sole, run.holder_until = true, list[1], #list == 2, tonumber(list[2])
  run.writer_holds = run.holder ~= nil and writes(run.holder, list[2])
  run.readers_hold = run.holder ~= nil and not run.writer_holds
end

-- last_upgrade is the token of the upgrade that was asked for last, that of its lease, and when that ends; nil if it has ended.
local function last_upgrade()
  local token, origin = string.match(call('HGET', meta, 'upgrade') or '', '^(%S+) (%S+)$')
  local at = token and ends_at(origin)
  if at then return token, origin, at end
end

-- upgraded is the lease that writes since this upgrade was granted, and when it ends; nil if there is none.
local function upgraded(token)
  local last, origin, at = last_upgrade()
  if last == token and writes(origin, at) then return origin, at end
end

-- An upgrade does not wait for its own lease.
local function frees_in(run)
  -- What has cut a lease meanwhile has set head_stale.
  if run.state_known and run.writer_holds and run.holder_until and not run.head_stale then return math.ceil(run.holder_until - now) end
  local last = call('ZRANGE', lock, ENDLESS, '(' .. now, 'BYSCORE', 'REV', 'LIMIT', '0', '2', 'WITHSCORES')
  if last[3] and last[1] == select(2, last_upgrade()) then return math.ceil(last[4] - now) end
  return last[2] and math.ceil(last[2] - now) or 0
end

-- It is so if a writer holds the lock. The lease that ends first says so; if it has expired, it is to be swept.
local function blocked_for(_, token)
  local purpose = purpose_of(token)
  local first = call('ZRANGE', lock, '1', ENDLESS, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
  local holder, left = first[1], first[2] and math.ceil(first[2] - now) or 0
  if left <= 0 or holder == token or purpose ~= 'r' and purpose ~= 'w' then return nil end
  return writes(holder, first[2]) and left or nil
end

-- ask_upgrade is ask for an upgrade of the lease origin. Each of two upgrades would wait for the other's lease. Of two attempts to upgrade
-- the same lease, the later one counts: the other was given up. If its release comes now, it must not find that it was the last.
local function ask_upgrade(run, token, origin)
  local at = ends_at(origin)
  if not at then return REFUSED end
  local other, origin_of_other = last_upgrade()
  if other == token and writes(origin, at) then return GRANTED, lease_fence(origin) end
  if other and other ~= token then
    local conflict
    if origin_of_other == origin then
      local keeper, _, _, _, _, number = string.match(token, TOKEN, TOKEN_FROM)
      local keeper_of_other, _, _, _, _, later = string.match(other, TOKEN, TOKEN_FROM)
      conflict = keeper == keeper_of_other and (tonumber(later) or 0) > (tonumber(number) or 0)
    else
      local lapse = call('ZSCORE', queue, '+' .. other)
      conflict = lapse and (lapse - HEARTBEATS) % UNSUBSCRIBED > now
    end
    if conflict then return CONFLICT end
    call('ZREM', queue, other, '+' .. other)
  end
  call('HSET', meta, 'upgrade', token .. ' ' .. origin)
  if not run.sole then return nil end
  call('ZREM', queue, token, '+' .. token) -- a copy of its request may have queued it
  return GRANTED, convert(run, origin, at, true)
end

local function ask(run, token, ttl, policy_arg)
  read_state(run)
  local purpose = purpose_of(token)
  if purpose == 'u' then return ask_upgrade(run, token, policy_arg) end
  -- Beside another's write lease it has none.
  local held_until = (not run.writer_holds or run.holder == token) and ends_at(token)
  if held_until then return GRANTED, prolong(run, token, ttl, held_until) end
  if (not run.holder or run.readers_hold and purpose == 'r') and call('EXISTS', queue) == 0 then
    local fence = next_fence(run)
    put(run, token, ttl, fence, not run.holder)
    return GRANTED, fence
  end
end

local function end_lease(run, token, cancel)
  local score = pcall('ZSCORE', lock, token)
  if type(score) == 'table' then
    run.type_error = score
    return REFUSED
  end
  if purpose_of(token) == 'u' then
    -- The lease that it has made write reads again, but only for its own keeper, whose caller knows: not by break.
    local origin, ends = nil, nil
    if cancel == '1' then origin, ends = upgraded(token) end
    if origin then mark(run, origin, ends, false) end
    return origin and GRANTED or REFUSED
  end
  local at = score and ends_at(token, score)
  if score then remove(run, token) end
  if not at then return REFUSED end
  run.would_end = math.max(run.would_end or 0, at) -- of several tokens, the one that would have ended last
  return GRANTED
end

-- count_streak counts a writer that passes waiting readers. When it is as many as the writer's token allows, the readers that wait now
-- go before the next writer. It returns the old values.
local function count_streak(run, token, number)
  if run.alone then
    local streak = call('HGET', meta, 'streak')
    if streak and streak ~= '0' then call('HSET', meta, 'streak', '0') end
    return {streak = streak or '0', keeps_pass = true}
  end
  local list = call('ZRANGE', queue, BEHIND_WAITERS, READERS, 'BYSCORE', 'REV', 'LIMIT', '0', '2', 'WITHSCORES')
  local last = token ~= run.try_token and list[list[1] == run.try_token and 4 or 2]
  local known = call('HMGET', meta, 'streak', 'pass')
  local streak, max_streak = 0, tonumber(number) or 0
  if last then streak = (tonumber(known[1]) or 0) + 1 end
  if max_streak > 0 and streak >= max_streak then
    call('HSET', meta, 'streak', '0', 'pass', last)
  elseif streak > 0 or known[1] and known[1] ~= '0' then
    call('HSET', meta, 'streak', streak)
  end
  return {streak = known[1] or 0, pass = known[2]}
end

local WAITERS_DIFFER = true

local function write_grants(run)
  if not run.unwritten then return end
  call('ZADD', lock, unpack(run.unwritten))
  keep_lock(run, run.unwritten_ms, run.fresh)
  run.unwritten = nil
end

local function next_in_line(run)
  read_state(run)
  if run.writer_holds then return nil end
  local head = first_waiters('1')
  if #head == 0 then return head end
  run.alone, head[2] = not head[2], nil
  local purpose = purpose_of(head[1])
  if purpose == 'r' and not run.alone then return first_waiters('99') end
  if purpose == 'w' and not run.alone then
    local pass = call('HGET', meta, 'pass')
    if pass then
      local list = call('ZRANGE', queue, READERS, pass, 'BYSCORE', 'LIMIT', '0', '100')
      if #list > 0 then return list end
      call('HDEL', meta, 'pass')
    end
  end
  return head
end

-- If the waiter does not fit because of leases that end sooner than the one that this script releases, then the retry time that it was
-- told is too late.
local function fits(run, flags)
  read_state(run)
  local purpose, may = string.sub(flags, 1, 1), not run.holder
  if purpose == 'r' then
    may = not run.writer_holds
  elseif purpose == 'u' then
    may = run.sole -- by the lease that it is of, or it is ineligible
  end
  if run.would_end and not may and now + frees_in(run) < run.would_end then run.head_stale = true end
  return may
end

local function write_grant(run, token, ms, flags, number)
  run.undo_data = run.undo_data or {}
  local purpose = string.sub(flags, 1, 1)
  if purpose == 'u' then
    local _, origin, at = last_upgrade()
    run.undo_data[token] = {origin = origin}
    return convert(run, origin, at, true)
  end
  local fence = next_fence(run)
  run.undo_data[token] = purpose == 'w' and count_streak(run, token, number) or {}
  run.sole = not run.holder
  if not run.unwritten then run.unwritten, run.unwritten_ms, run.fresh = {}, 0, run.sole end
  local list, n = run.unwritten, #run.unwritten
  list[n + 1], list[n + 2], list[n + 3], list[n + 4] = now + ms, token, fence_text(fence), '#' .. token
  run.unwritten_ms = math.max(run.unwritten_ms, ms)
  if run.sole then run.holder, run.holder_until = token, now + ms end
  run.readers_hold = purpose == 'r'
  run.writer_holds = not run.readers_hold
  return fence
end

local function undo_grant(run, token)
  local old = run.undo_data[token]
  run.state_known = false
  if old.origin then
    mark(run, old.origin, ends_at(old.origin), false)
    return
  end
  remove(run, token)
  if old.streak then
    call('HSET', meta, 'streak', old.streak)
    if old.pass then
      call('HSET', meta, 'pass', old.pass)
    elseif not old.keeps_pass then
      call('HDEL', meta, 'pass')
    end
  end
end

-- An upgrade may not wait any more when its lease has ended, or when another has come while it was away: each would wait for the
-- other's lease.
local function ineligible(_, token)
  if purpose_of(token) ~= 'u' then return nil end
  local last = last_upgrade()
  if last == token then return nil end
  return last and CONFLICT or REFUSED
end

local function lease_of(run, token)
  if purpose_of(token) ~= 'u' then return lease_in_set(run, token) end
  local origin, at = upgraded(token)
  if origin then return lease_fence(origin), at end
end
local maintain = cut_leases

local function holders(_, after, token, count)
  return held_leases(after, token, count)
end
