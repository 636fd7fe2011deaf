-- rwlock: many may hold the lock for reading, or one for writing. The first letter of a token's flags is its purpose:
--   r  to read
--   w  to write; its number is the maximum writer streak, 0: unlimited
--   u  an upgrade: to write, in place of the token's own read lease; its number counts the upgrades that its keeper has begun
--   d  a downgrade: to read, in place of the token's own write lease
-- r and d are read leases; w, u and those of other libraries, which have no purpose, are write leases. In the queue an upgrade is before
-- all writers, and writers before all readers, each in order of arrival; see place. Fields of the meta hash:
--   streak   the writers in a row that have passed waiting readers
--   pass     the place up to which readers go before the next writer
--   upgrade  the tokens of the waiting upgrade and of its read lease
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

-- replace writes a lease that replaces another, origin, which ends. It lasts for ms, and at least for what the other had left: a holder
-- that has not learned of the new lease yet relies on the old one.
local function replace(run, origin, token, ms, fence, fresh)
  local _, _, origin_ttl = string.match(origin, TOKEN, TOKEN_FROM)
  local _, _, ttl = string.match(token, TOKEN, TOKEN_FROM)
  local left = (ends_at(origin) or now) - now
  local extended = (tonumber(call('ZSCORE', lock, '+' .. origin)) or 0) - BEYOND
  ms = math.max(tonumber(ms), math.min(left, math.max(tonumber(origin_ttl or 0), extended)))
  remove(run, origin)
  if ms > tonumber(ttl) then call('ZADD', lock, BEYOND + ms, '+' .. token) end
  put(run, token, ms, fence, fresh)
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
  local purpose = run.holder and purpose_of(run.holder)
  run.readers_hold = run.holder ~= nil and (purpose == 'r' or purpose == 'd')
  run.writer_holds = run.holder ~= nil and not run.readers_hold
end

-- waiting_upgrade is the token of the upgrade that waits, or was the last to wait, and that of its read lease; nil if the read lease
-- has ended.
local function waiting_upgrade()
  local token, origin = string.match(call('HGET', meta, 'upgrade') or '', '^(%S+) (%S+)$')
  if token and ends_at(origin) then return token, origin end
end

-- An upgrade does not wait for the lease that it replaces.
local function frees_in(run)
  -- What has cut a lease meanwhile has set head_stale.
  if run.state_known and run.writer_holds and run.holder_until and not run.head_stale then return run.holder_until - now end
  local last = call('ZRANGE', lock, ENDLESS, '(' .. now, 'BYSCORE', 'REV', 'LIMIT', '0', '2', 'WITHSCORES')
  if last[3] and last[1] == select(2, waiting_upgrade()) then return last[4] - now end
  return last[2] and last[2] - now or 0
end

-- It is so if a writer holds the lock. The lease that ends first says so; if it has expired, it is to be swept.
local function blocked_for(_, token)
  local purpose = purpose_of(token)
  local first = call('ZRANGE', lock, '1', ENDLESS, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
  local holder, left = first[1], first[2] and first[2] - now or 0
  if left <= 0 or holder == token or purpose ~= 'r' and purpose ~= 'w' then return nil end
  local held_for = purpose_of(holder)
  return held_for ~= 'r' and held_for ~= 'd' and left or nil
end

-- convert is ask for an upgrade or a downgrade of the lease origin. Each of two upgrades would wait for the other's read lease. Of two
-- attempts to upgrade the same lease the later one counts: the other is being cancelled.
local function convert(run, token, ttl, origin, max_wait)
  local purpose, origin_purpose = purpose_of(token), purpose_of(origin)
  if not ends_at(origin) or purpose == 'd' and (origin_purpose == 'r' or origin_purpose == 'd') then return REFUSED end
  if purpose == 'd' or run.sole then
    local fence = next_fence(run)
    run.state_known = false
    replace(run, origin, token, ttl, fence)
    -- A copy of its request may have queued it.
    if purpose == 'u' then call('ZREM', queue, token, '+' .. token) end
    return GRANTED, fence, true
  end
  local other, origin_of_other = waiting_upgrade()
  local lapse = other and call('ZSCORE', queue, '+' .. other)
  if lapse and (lapse - HEARTBEATS) % UNSUBSCRIBED > now then
    local later = tonumber(string.match(other, '%d*$')) or 0
    if origin_of_other ~= origin or later > (tonumber(string.match(token, '%d*$')) or 0) then return CONFLICT end
  end
  if max_wait then
    -- The other one has lapsed, or is an earlier attempt to upgrade the same lease.
    if other and other ~= token then call('ZREM', queue, other, '+' .. other) end
    call('HSET', meta, 'upgrade', token .. ' ' .. origin)
  end
  return nil
end

local function ask(run, token, ttl, policy_arg, max_wait)
  read_state(run)
  local purpose = purpose_of(token)
  -- Beside another's write lease it has none.
  local held_until = (not run.writer_holds or run.holder == token) and ends_at(token)
  if held_until then return GRANTED, prolong(run, token, ttl, held_until), purpose == 'd' end
  if purpose == 'd' or purpose == 'u' then return convert(run, token, ttl, policy_arg, max_wait) end
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
  local at = score and ends_at(token, score)
  -- The caller has cancelled an upgrade or a downgrade. This lease is all that it has, so it is kept.
  if at and cancel == '2' then return HELD end
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
  if purpose == 'u' and waiting_upgrade() ~= head[1] then
    -- Its read lease has ended, or another upgrade has come while this one was away.
    dequeue(head)
    run.head_stale = true
    return next_in_line(run)
  end
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
    may = run.sole and run.holder == select(2, waiting_upgrade())
  end
  if run.would_end and not may and now + frees_in(run) < run.would_end then run.head_stale = true end
  return may
end

-- grant_upgrade writes the lease of an upgrade in place of its read lease, and returns what undo_grant needs.
local function grant_upgrade(run, token, ms, fence)
  local origin = select(2, waiting_upgrade())
  local scores = call('ZMSCORE', lock, origin, '#' .. origin, '+' .. origin)
  call('HDEL', meta, 'upgrade')
  replace(run, origin, token, ms, fence, true)
  return {origin = origin, at = scores[1], fence = scores[2], longer = scores[3]}
end

local function write_grant(run, token, ms, flags, number)
  local purpose, fence, old = string.sub(flags, 1, 1), next_fence(run), {}
  if purpose == 'w' then old = count_streak(run, token, number) end
  run.sole = purpose == 'u' or not run.holder
  if purpose == 'u' then
    old = grant_upgrade(run, token, ms, fence)
  else
    if not run.unwritten then run.unwritten, run.unwritten_ms, run.fresh = {}, 0, run.sole end
    local list, n = run.unwritten, #run.unwritten
    list[n + 1], list[n + 2], list[n + 3], list[n + 4] = now + ms, token, fence_text(fence), '#' .. token
    run.unwritten_ms = math.max(run.unwritten_ms, ms)
  end
  run.undo_data = run.undo_data or {}
  run.undo_data[token] = old
  if run.sole then run.holder, run.holder_until = token, purpose ~= 'u' and now + ms or nil end
  run.readers_hold = purpose == 'r'
  run.writer_holds = not run.readers_hold
  return fence
end

local function undo_grant(run, token)
  local old = run.undo_data[token]
  remove(run, token)
  if old.origin then
    call('ZADD', lock, old.at, old.origin, old.fence, '#' .. old.origin)
    if old.longer then call('ZADD', lock, old.longer, '+' .. old.origin) end
    keep_lock(run, old.at - now)
    call('HSET', meta, 'upgrade', token .. ' ' .. old.origin)
  elseif old.streak then
    call('HSET', meta, 'streak', old.streak)
    if old.pass then
      call('HSET', meta, 'pass', old.pass)
    elseif not old.keeps_pass then
      call('HDEL', meta, 'pass')
    end
  end
  run.state_known = false
end

-- An upgrade may not wait any more when its read lease has ended, or when another has come while it was away: each would wait for
-- the other's read lease.
local function ineligible(_, token)
  if purpose_of(token) ~= 'u' then return nil end
  local known = waiting_upgrade()
  if known == token then return nil end
  return known and CONFLICT or REFUSED
end

local lease_of = lease_in_set
local maintain = cut_leases

local function holders(_, after, token, count)
  return held_leases(after, token, count)
end
