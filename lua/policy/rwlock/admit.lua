-- include: lib/fence
-- include: policy/rwlock/state
-- include: policy/rwlock/upgrade
-- include: policy/rwlock/replace
-- include: policy/rwlock/frees_in
-- include: policy/rwlock/streak
-- include: policy/rwlock/recall
-- include: lib/first_waiters
local WAITERS_DIFFER = true

-- undo_data: token -> what write_grant has changed besides the lease.
local undo_data = {}

-- unwritten: scores and members of the leases that write_grant has left to write_grants. unwritten_ms is how long they last at
-- most, and fresh says that there is no other lease.
local unwritten, unwritten_ms, fresh = {}, 0, nil

local function write_grants()
  if unwritten_ms == 0 then return end
  call('ZADD', lock, unpack(unwritten))
  keep_lock(unwritten_ms, fresh)
  unwritten, unwritten_ms = {}, 0
end

local next_in_line
function next_in_line()
  read_state()
  if writer_holds then return nil end
  local head = first_waiters('1')
  if #head == 0 then return head end
  alone, head[2] = not head[2], nil
  local purpose = purpose_of(head[1])
  if purpose == 'r' and not alone then return first_waiters('99') end
  if purpose == 'u' and waiting_upgrade() ~= head[1] then
    -- Its read lease has ended, or another upgrade has come while this one was away.
    dequeue(head)
    head_stale = true
    return next_in_line()
  end
  if purpose == 'w' and not alone then
    local pass = call('HGET', meta, 'pass')
    if pass then
      local list = call('ZRANGE', queue, READERS, pass, 'BYSCORE', 'LIMIT', '0', '100')
      if #list > 0 then return list end
      call('HDEL', meta, 'pass')
    end
  end
  return head
end

-- If the waiter does not fit because of leases that end sooner than the one that this script releases, then the retry time
-- that it was told is too late.
local function fits(flags)
  read_state()
  local purpose, may = string.sub(flags, 1, 1), not holder
  if purpose == 'r' then
    may = not writer_holds
  elseif purpose == 'u' then
    may = sole and holder == select(2, waiting_upgrade())
  end
  if not may and readers_hold and purpose ~= 'r' then
    write_grants()
    recall()
  end
  if would_end and not may and now + frees_in() < would_end then head_stale = true end
  return may
end

local function write_grant(token, ms, flags, number)
  local purpose, old, origin = string.sub(flags, 1, 1), {}, nil
  if purpose == 'u' then
    origin = select(2, waiting_upgrade())
    old = {
      origin = origin,
      at = call('ZSCORE', lock, origin),
      fence = call('ZSCORE', lock, '#' .. origin),
      longer = call('ZSCORE', lock, '+' .. origin),
    }
    call('HDEL', meta, 'upgrade')
  elseif purpose == 'w' then
    old = count_streak(token, number)
  end
  undo_data[token] = old
  sole = purpose == 'u' or not holder
  local fence = next_fence()
  if origin then
    replace(origin, token, ms, fence, true)
  else
    local n, at = #unwritten, now + ms
    if n == 0 then fresh = sole end
    local retained = flags == RETAINING
    -- inline: policy/rwlock/score
    unwritten[n + 1], unwritten[n + 2], unwritten[n + 3], unwritten[n + 4] = at, token, score, '#' .. token
    unwritten_ms = math.max(unwritten_ms, ms)
  end
  if sole then holder, holder_until = token, not origin and now + ms or nil end
  readers_hold = purpose == 'r'
  writer_holds = not readers_hold
  return fence
end

local function undo_grant(token)
  local old = undo_data[token]
  remove(token)
  if old.origin then
    call('ZADD', lock, old.at, old.origin, old.fence, '#' .. old.origin)
    if old.longer then call('ZADD', lock, old.longer, '+' .. old.origin) end
    keep_lock(old.at - now)
    call('HSET', meta, 'upgrade', token .. ' ' .. old.origin)
  elseif old.streak then
    call('HSET', meta, 'streak', old.streak)
    if old.pass then
      call('HSET', meta, 'pass', old.pass)
    elseif not old.keeps_pass then
      call('HDEL', meta, 'pass')
    end
  end
  state_known = false
end

-- An upgrade may not wait any more when its read lease has ended, or when another has come while it was away: each would
-- wait for the other's read lease.
local function ineligible(token)
  if purpose_of(token) ~= 'u' then return nil end
  local known = waiting_upgrade()
  if known == token then return nil end
  return known and CONFLICT or REFUSED
end
