-- single: a lock that one holder has at a time. It is one string key, the holder's token, as SET key token NX PX writes
-- it, so that it ends by itself at the very millisecond. The fence of the lease in the key is seq. The policies mutex
-- and fair are made of this.

-- part: base
-- Nothing that the short ways need.

-- part: take
-- Wants token, ttl, the facts, and open: whether a newcomer may take a free lock, whoever waits. Leaves fence: that of
-- what was granted at once, or was held already; or nil.
if open and call('SET', lock, token, 'NX', 'PX', ttl) then
  fence = draw_fence()
else
  local owner = pcall('GET', lock)
  if type(owner) == 'table' then return owner end
  if owner == token then
    call('PEXPIRE', lock, ttl, 'GT')
    fence = seq > 0 and seq or draw_fence()
  end
end

-- part: drop
-- Wants token. Leaves had: GRANTED if the token held the lock, which is free now; else REFUSED.
had = REFUSED
local owner = pcall('GET', lock)
if owner == token then
  call('DEL', lock)
  had = GRANTED
elseif type(owner) == 'table' then
  wrong = owner
end

-- part: extend
-- Wants token, ttl and exact. Leaves held: whether the token held the lock, and does so until ttl from now at least.
-- Only an exact one may shorten.
local owner = pcall('GET', lock)
if type(owner) == 'table' then return owner end
held = owner == token
if held then
  if exact then call('PEXPIRE', lock, ttl) else call('PEXPIRE', lock, ttl, 'GT') end
end

-- part: rest
-- IN_ORDER: when a lease is given up, it is the turn of the first in the queue.
local IN_ORDER = true
-- MIXED: if one has to wait, so have all.
local MIXED = false
-- free: is the lock free? nil: not looked yet.
local free = had == GRANTED or nil

-- lasts is for how many ms more the lock's owner holds it. After the server's clock was set back that may be more than the
-- whole ttl: then it is cut to that.
local function lasts(owner)
  local left, ttl = call('PTTL', lock), ttl_of(owner)
  if not ttl or left <= ttl then return left end
  local longer, ms = string.match(call('HGET', meta, 'longer') or '', '^(.*) (%d+)$')
  if longer == owner then ttl = tonumber(ms) end
  if left <= ttl then return left end
  call('PEXPIRE', lock, ttl)
  changed = true
  return ttl
end

-- lease is the fence and the end of the token's lease, or nil.
local function lease(token)
  if pcall('GET', lock) ~= token then return nil end
  return seq > 0 and seq or draw_fence(), now + lasts(token)
end

-- confirm is the fence of a lease that is held; it notes a ttl longer than the one asked for at first. A foreign
-- holder took no fence when it came, so it gets one now.
local function confirm(token, ttl)
  local first = ttl_of(token)
  if tonumber(ttl) > (first or 0) then call('HSET', meta, 'longer', token .. ' ' .. ttl) end
  return first and seq > 0 and seq or draw_fence()
end

-- next_in_line is up to so many of those whose turn it is now, in order; nil if nobody may run.
local function next_in_line(most)
  if free == nil then free = call('EXISTS', lock) == 0 end
  return free and call('ZRANGE', queue, 0, most - 1)
end

-- fits: may this waiter have the lock, after those that this script has granted already?
local function fits()
  return free
end

-- give writes the grant of a waiter for ms and returns its fence.
local function give(token, ms)
  free = false
  call('SET', lock, token, 'PX', ms)
  return draw_fence()
end

-- undo takes a grant back that this script has written.
local function undo()
  free = true
  call('DEL', lock)
end

-- void is why this waiter may not come back any more: there is no reason here.
local function ineligible()
  return nil
end

-- ends is when room may come by itself, in ms from now; 0 if that is not known.
local function ends()
  return math.max(call('PTTL', lock), 0)
end

-- place is where in the queue a newcomer with this ticket stands; ticket_of is the way back.
local function place(ticket)
  return ticket
end
local function ticket_of(at)
  return at
end

-- holders is some of them: token, fence, ms left. The lease of another library has no fence.
local function holders(from)
  local owner = pcall('GET', lock)
  if type(owner) == 'table' then wrong = owner end
  if type(owner) ~= 'string' or from > 0 then return {} end
  return {{owner, ttl_of(owner) and seq or 0, call('PTTL', lock)}}
end

-- mend: after the server's clock was set back, no lease may last longer than its whole ttl. And one who heartbeats and stands in
-- line may be the very one that holds the lock, by a copy of its request that came late: then it learns of that now.
local function maintain()
  local owner = pcall('GET', lock)
  if type(owner) == 'table' then wrong = owner end
  if type(owner) ~= 'string' then return end
  lasts(owner)
  if asking[owner] then
    call('ZREM', queue, owner)
    call('ZREM', heartbeats, owner)
    granted[owner], changed = {lease(owner)}, true
  end
end
