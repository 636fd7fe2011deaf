-- leases: a set of leases that are held at the same time, each with an end of its own. They lie in the lock's own key, a
-- zset, each under up to three members, which the ranges of their scores tell apart:
--   token   the server's ms at which the lease ends     1 .. ENDLESS
--   #token  its fence                                   ENDLESS .. BEYOND
--   +token  BEYOND + the ms that it was extended to, if those are more than its token says
-- A lease whose end has passed is none, whether it has been swept or not. The policies rwlock and semaphore are made
-- of this.

-- part: base
local ENDLESS, BEYOND = '900000000000000', 8000000000000000

-- ends_at is when the token's lease ends, or nil. The score is the token's, if it is known.
local function ends_at(token, score)
  local at = tonumber(score or call('ZSCORE', lock, token) or 0)
  return at > now and at <= tonumber(ENDLESS) and at or nil
end

-- keep_lock keeps the set for as long as a lease of ms from now lasts. Fresh says that there is no other lease in it.
local longest = 0
local function keep_lock(ms, fresh)
  ms = tonumber(ms)
  if fresh then
    call('PEXPIRE', lock, ms + 1000)
  elseif ms <= longest then
    return
  elseif call('PEXPIRE', lock, ms + 1000, 'GT') == 0 then
    call('PEXPIRE', lock, ms + 1000, 'NX')
  end
  longest = ms
end

-- live is some of the leases that are held, those that end first before the others.
local function live(from, most, ...)
  return call('ZRANGE', lock, '(' .. now, ENDLESS, 'BYSCORE', 'LIMIT', from, most, ...)
end

-- again is the fence of a lease that the token holds already, because a copy of its request was granted; or nil.
local function again(token, ttl)
  local at = ends_at(token)
  if not at then return nil end
  if at < now + ttl then
    call('ZADD', lock, now + ttl, token)
    keep_lock(ttl)
  end
  return tonumber(call('ZSCORE', lock, '#' .. token))
end

-- part: plain
-- Leases that are all alike: nothing is counted.

-- put writes a lease of ms.
local function put(token, ms, fence, fresh)
  call('ZADD', lock, now + ms, token, fence, '#' .. token)
  keep_lock(ms, fresh)
end

-- remove takes a lease out. With the last one the key goes, and its expiry.
local function remove(token)
  call('ZREM', lock, token, '#' .. token, '+' .. token)
  longest = 0
end

-- sweep takes out up to a hundred leases that are over, and returns them.
local function sweep()
  local over = call('ZRANGE', lock, 1, now, 'BYSCORE', 'LIMIT', 0, 100)
  for _, token in ipairs(over) do remove(token) end
  return over
end

-- part: extend
-- Wants token, ttl and exact. Leaves held: whether the token held a lease, and does so until ttl from now at least.
-- Only an exact one may shorten.
-- include: clock
-- The expiry is written first: a script that has written may go on when memory is full.
local at = ends_at(token)
held = at ~= nil
if held and (exact or at < now + ttl) then
  keep_lock(ttl)
  call('ZADD', lock, now + ttl, token)
end

-- part: rest
-- IN_ORDER: when a lease is given up, it is not always the turn of the first in the queue.
local IN_ORDER = false

-- whole is when a lease ends that ends at this time. After the server's clock was set back that may be later than its whole
-- ttl from now: then it is cut to that.
local function whole(token, at)
  local ttl = ttl_of(token)
  if not ttl or at - now <= ttl then return at end
  ttl = math.max(ttl, (tonumber(call('ZSCORE', lock, '+' .. token)) or 0) - BEYOND)
  if at - now <= ttl then return at end
  call('ZADD', lock, now + ttl, token)
  changed = true
  return now + ttl
end

-- held_lease is the fence and the end of the token's lease, or nil.
local function held_lease(token)
  local at = ends_at(token)
  if at then return tonumber(call('ZSCORE', lock, '#' .. token)), whole(token, at) end
end

-- confirm is the fence of a lease that is held; it notes a ttl longer than the one asked for at first.
local function confirm(token, ttl)
  if tonumber(ttl) > (ttl_of(token) or 0) then call('ZADD', lock, BEYOND + ttl, '+' .. token) end
  return tonumber(call('ZSCORE', lock, '#' .. token))
end

-- held_leases is some of them: token, fence, ms left.
local function held_leases(from, most)
  local list = live(from, most, 'WITHSCORES')
  local all = {}
  for i = 1, #list, 2 do
    all[#all + 1] = {list[i], tonumber(call('ZSCORE', lock, '#' .. list[i])) or 0, list[i + 1] - now}
  end
  return all
end

-- maintain_leases: after the server's clock was set back, no lease may last longer than its whole ttl. It looks at the hundred
-- that last longest.
local function maintain_leases()
  local list = call('ZRANGE', lock, ENDLESS, '(' .. now, 'BYSCORE', 'REV', 'LIMIT', 0, 100, 'WITHSCORES')
  for i = 1, #list, 2 do whole(list[i], tonumber(list[i + 1])) end
end
