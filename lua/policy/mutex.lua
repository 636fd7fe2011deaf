-- mutex: one holder at a time. A newcomer takes a free mutex, also past the queue: throughput comes first. The lock is one string key with
-- the holder's token, as SET key token NX PX writes it, so that it expires at the very millisecond. The fence of the lease in the key
-- is the last one, run.seq. fair and redlock extend this policy. Fields of the meta hash:
--   longer    a lease that was extended beyond what its token asked for: its token and its ttl
--   recalled  the token of a lease that a process retains, and that was recalled
--   yield     when the time ends, or has ended last, for which a release has left the key free for clients of other libraries, which ask
--             now and then; and for how many ms it was. Meanwhile metadata is as while there may be tombstones, so that no fast script
--             grants anything
-- In run: free, whether the lock is free; nil if that is not known yet.

-- left_free returns for how many ms more the key is left free, or nil. It is bounded by the whole time, in case the clock was set back.
local function left_free(run)
  if run.refused_until <= now then return nil end
  local last, ms = string.match(call('HGET', meta, 'yield') or '', '^(%d+) (%d+)$')
  local left = last and last - now or 0
  return left > 0 and left <= tonumber(ms) and left or nil
end

-- leave_free leaves the key free for ms, at most once in ten times as long.
local function leave_free(run, ms)
  local last = tonumber(string.match(call('HGET', meta, 'yield') or '0', '^%d+'))
  -- A time that is too far ahead is from before the clock was set back.
  if now < last + 9 * ms and last <= now + ms then return end
  local until_ms = now + ms
  local written = pcall('HSET', meta, 'yield', string.format('%.0f %s', until_ms, ms), 'tombstones', math.max(run.refused_until, until_ms))
  if type(written) ~= 'table' then run.refused_until, run.head_stale = math.max(run.refused_until, until_ms), true end
  run.free = nil
end

-- recall notifies the process that retains the owner's lease that somebody else asks for the lock. It does so once, and renew replies
-- that the lease was recalled. If memory is full, or without metadata, that is not noted, and each request notifies. Nobody knows whether
-- the message was received, so it frees nothing.
local function recall(run, owner)
  local keeper, serial, _, _, flags = string.match(owner, TOKEN, TOKEN_FROM)
  if flags ~= 'k' or call('HGET', meta, 'recalled') == owner then return end
  if run.seq > 0 then pcall('HSET', meta, 'recalled', owner) end
  publish(run, keeper, serial .. ' recall')
end

local function place(ticket)
  return ticket, true
end

local function ticket_of(at)
  return at
end

-- PTTL rounds down: a lock whose lease ends within this millisecond has 0 left, which would mean that nothing is known.
local function frees_in(run)
  local left = call('PTTL', lock)
  if left == -2 then return left_free(run) or 0 end
  return left == 0 and 1 or math.max(left, 0)
end

-- The owner of a lease that its process retains (k) is to be notified first; see ask.
local function blocked_for(run, token)
  local owner = pcall('GET', lock)
  if type(owner) ~= 'string' or owner == token or string.sub(owner, -1) == 'k' then return nil end
  local left = call('PTTL', lock)
  return left == 0 and 1 or math.max(left, 0)
end

-- may_take says whether a newcomer may take the free lock. A request for a lease that its process is to retain does not pass waiters:
-- nobody would recall it for them.
local function may_take(run, policy_arg)
  return not left_free(run) and (policy_arg ~= RETAIN or call('EXISTS', queue) == 0)
end

-- lease_fence is the fence of the token that is in the key. A token of another library has drawn none, so it gets one now.
local function lease_fence(run)
  return run.seq > 0 and run.seq or next_fence(run)
end

local function ask(run, token, ttl, policy_arg)
  local owner = pcall('GET', lock)
  if type(owner) == 'table' then
    run.type_error = owner
    return nil
  end
  -- If it was granted while others came, it is recalled for them now.
  if owner and string.sub(owner, -1) == 'k' and (owner ~= token or call('EXISTS', queue) == 1) then recall(run, owner) end
  if owner == token then
    call('PEXPIRE', lock, ttl, 'GT')
    return GRANTED, lease_fence(run)
  end
  if owner or not may_take(run, policy_arg) then return nil end
  call('SET', lock, token, 'PX', ttl)
  return GRANTED, next_fence(run)
end

local function end_lease(run, token, _, yield)
  local owner = pcall('GET', lock)
  if owner == token then
    call('DEL', lock)
    run.free = true
    if yield then leave_free(run, yield) end
    return GRANTED
  end
  if type(owner) == 'table' then run.type_error = owner end
  return REFUSED
end

local WAITERS_DIFFER = false

local function next_in_line(run, last)
  if run.free == nil then run.free = call('EXISTS', lock) == 0 and not left_free(run) end
  return run.free and first_waiters(last)
end

local function fits(run)
  return run.free
end

local function write_grant(run, token, ms)
  run.free = false
  call('SET', lock, token, 'PX', ms)
  return next_fence(run)
end

-- write_grant has written everything.
local function write_grants() end

local function undo_grant(run)
  run.free = true
  call('DEL', lock)
end

local function ineligible()
  return nil
end

-- ms_left is for how long the lock's owner holds it. After the server's clock was set back that may be longer than the lease's whole
-- ttl, and is cut to that.
local function ms_left(run, owner)
  local left, _, _, ttl = call('PTTL', lock), string.match(owner, TOKEN, TOKEN_FROM)
  ttl = tonumber(ttl)
  if not ttl or left <= ttl then return left end
  local longer, ms = string.match(call('HGET', meta, 'longer') or '', '^(.*) (%d+)$')
  if longer == owner then ttl = tonumber(ms) end
  if left <= ttl then return left end
  call('PEXPIRE', lock, ttl)
  run.head_stale = true
  return ttl
end

local function lease_of(run, token)
  if pcall('GET', lock) ~= token then return nil end
  return lease_fence(run), now + ms_left(run, token)
end

-- A waiter may be the holder itself, by a copy of its request that arrived late. It is told so now. A lease that a process retains is
-- recalled for waiters, which may have come back to the queue since it was granted.
local function maintain(run)
  local owner = pcall('GET', lock)
  if type(owner) == 'table' then run.type_error = owner end
  if type(owner) ~= 'string' then return end
  ms_left(run, owner)
  if run.callers[owner] then
    dequeue({owner})
    run.granted[owner], run.head_stale = {lease_of(run, owner)}, true
  elseif next(run.callers) and string.sub(owner, -1) == 'k' then
    recall(run, owner)
  end
end

local function renew_lease(run, token, ttl, exact)
  local owner = pcall('GET', lock)
  if type(owner) == 'table' then run.type_error = owner end
  if owner ~= token then return false end
  if exact then call('PEXPIRE', lock, ttl) else call('PEXPIRE', lock, ttl, 'GT') end
  return true
end

local function was_recalled(token)
  return call('HGET', meta, 'recalled') == token
end

local function confirm(run, token, ttl)
  local _, _, asked = string.match(token, TOKEN, TOKEN_FROM)
  if tonumber(ttl) > tonumber(asked or 0) then call('HSET', meta, 'longer', token .. ' ' .. ttl) end
  return asked and lease_fence(run) or next_fence(run)
end

-- The lease of another library has no fence.
local function holders(run, after, token)
  local owner = pcall('GET', lock)
  if type(owner) == 'table' then run.type_error = owner end
  if type(owner) ~= 'string' then return {}, 0 end
  if token ~= '' then return {}, 1 end
  return {{owner, string.match(owner, TOKEN, TOKEN_FROM) and run.seq or 0, call('PTTL', lock), 0}}, 1
end
