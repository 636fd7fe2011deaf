-- mutex: one holder at a time. A newcomer takes a free mutex, also past the queue: throughput comes first. The lock is one string key with
-- the holder's token, as SET key token NX PX writes it, so that it expires at the very millisecond. The fence of the lease in the key
-- is the last one, run.seq. fair and redlock extend this policy. Fields of the meta hash:
--   longer    a lease that was extended beyond what its token asked for: its token and its ttl
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

local function place(ticket)
  return ticket, true
end

local function ticket_of(at)
  return at
end

-- noted_ttl is the ttl that a lease was extended to, if that is noted since its token asks for less, or 0.
local function noted_ttl(token)
  local owner, ms = string.match(call('HGET', meta, 'longer') or '', '^(.*) (%d+)$')
  return owner == token and tonumber(ms) or 0
end

-- ms_left is for how long the lock's owner holds it; -1: the key of another library has no expiry. After the server's clock was set back that
-- may be longer than the lease's whole ttl, and is cut to that, as it is if somebody has taken the key's expiry away.
local function ms_left(run, owner)
  local left, _, _, ttl = call('PTTL', lock), string.match(owner, TOKEN, TOKEN_FROM)
  ttl = tonumber(ttl)
  if not ttl or left ~= -1 and left <= ttl then return left end
  ttl = math.max(ttl, noted_ttl(owner))
  if left ~= -1 and left <= ttl then return left end
  call('PEXPIRE', lock, ttl)
  run.head_stale = true
  return ttl
end

-- PTTL rounds down: a lock whose lease ends within this millisecond has 0 left, which would mean that nothing is known.
local function frees_in(run)
  local left = call('PTTL', lock)
  if left == -2 then return left_free(run) or 0 end
  local owner = left == -1 and pcall('GET', lock)
  if type(owner) == 'string' then left = ms_left(run, owner) end
  return left == 0 and 1 or math.max(left, 0)
end

-- Without an expiry, frees_in sees to it.
local function blocked_for(run, token)
  local owner = pcall('GET', lock)
  if type(owner) ~= 'string' or owner == token then return nil end
  local left = call('PTTL', lock)
  if left == -1 then return nil end
  return left == 0 and 1 or math.max(left, 0)
end

-- may_take says whether a newcomer may take the free lock.
local function may_take(run)
  return not left_free(run)
end

-- lease_fence is the fence of the token that is in the key. A token of another library has drawn none, so it gets one now.
local function lease_fence(run)
  return run.seq > 0 and run.seq or next_fence(run)
end

local function ask(run, token, ttl)
  local owner = pcall('GET', lock)
  if type(owner) == 'table' then
    run.type_error = owner
    return nil
  end
  if owner == token then
    extend_expiry(lock, ttl)
    return GRANTED, lease_fence(run)
  end
  if owner or not may_take(run) then return nil end
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

local function lease_of(run, token)
  if pcall('GET', lock) ~= token then return nil end
  return lease_fence(run), now + ms_left(run, token)
end

-- A waiter may be the holder itself, by a copy of its request that arrived late. It is told so now.
local function maintain(run)
  local owner = pcall('GET', lock)
  if type(owner) == 'table' then run.type_error = owner end
  if type(owner) ~= 'string' then return end
  ms_left(run, owner)
  if run.callers[owner] then
    dequeue({owner})
    run.granted[owner], run.head_stale = {lease_of(run, owner)}, true
  end
end

local function renew_lease(run, token, ttl)
  local owner = pcall('GET', lock)
  if type(owner) == 'table' then run.type_error = owner end
  if owner ~= token then return false end
  extend_expiry(lock, ttl)
  return true
end

local function confirm(run, token, ttl)
  local _, _, asked = string.match(token, TOKEN, TOKEN_FROM)
  if tonumber(ttl) > tonumber(asked or 0) and tonumber(ttl) > noted_ttl(token) then call('HSET', meta, 'longer', token .. ' ' .. ttl) end
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
