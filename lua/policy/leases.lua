-- leases: a set of leases that are held at the same time, in a zset; how they are encoded says lib/constants. It is no primitive: rwlock
-- and semaphore extend it.
-- In run: longest, the ms from now for which the lock's key is kept already; nil: unknown. converted, 1 if the lease that was renewed is.

local function place(ticket)
  return ticket, true
end

local function ticket_of(at)
  return at
end

-- ends_at is when the token's lease ends, or nil. score is the token's, if it is known.
local function ends_at(token, score)
  local at = tonumber(score or call('ZSCORE', lock, token) or 0)
  return at > now and at <= tonumber(ENDLESS) and at or nil
end

-- lease_fence is the fence of a lease; nil if it has none.
local function lease_fence(token)
  return tonumber(call('ZSCORE', lock, '#' .. token) or nil)
end

-- keep_lock keeps the lock's key for as long as a lease of ms from now lasts. fresh says that there is no other lease in it.
local function keep_lock(run, ms, fresh)
  if fresh then
    call('PEXPIRE', lock, ms)
  elseif ms - (run.longest or 0) <= 0 then
    return
  elseif call('PEXPIRE', lock, ms, 'GT') == 0 then
    call('PEXPIRE', lock, ms, 'NX')
  end
  run.longest = ms
end

-- prolong makes a lease that ends at this ms last for ttl from now at least, and returns its fence.
local function prolong(run, token, ttl, at)
  if at < now + ttl then
    call('ZADD', lock, now + ttl - at % 1, token)
    keep_lock(run, ttl)
  end
  return lease_fence(token)
end

-- cut is the end of a lease whose score is at. After the server's clock was set back that may be further away than the lease's whole
-- ttl, and is cut to that.
local function cut(run, token, at)
  local _, _, asked = string.match(token, TOKEN, TOKEN_FROM)
  local ttl = tonumber(asked)
  if not ttl or at - now <= ttl then return at end
  ttl = math.max(ttl, (tonumber(call('ZSCORE', lock, '+' .. token)) or 0) - BEYOND)
  if at - now <= ttl then return at end
  call('ZADD', lock, now + ttl - at % 1, token)
  run.head_stale = true
  return now + ttl - at % 1
end

local function lease_in_set(run, token)
  local at = ends_at(token)
  if at then return lease_fence(token), cut(run, token, at) end
end

-- cut_leases checks the hundred leases that last longest.
local function cut_leases(run)
  local list = call('ZRANGE', lock, ENDLESS, '(' .. now, 'BYSCORE', 'REV', 'LIMIT', 0, 100, 'WITHSCORES')
  for i = 1, #list, 2 do cut(run, list[i], tonumber(list[i + 1])) end
end

local function renew_lease(run, token, ttl)
  local at = ends_at(token)
  if at and at < now + ttl then
    -- The expiry is written first: a script that has written may continue when memory is full.
    keep_lock(run, ttl)
    call('ZADD', lock, now + ttl - at % 1, token)
  end
  run.converted = at and at % 1 > 0 and 1 or nil
  return at ~= nil
end

local function confirm(_, token, ttl)
  local _, _, asked = string.match(token, TOKEN, TOKEN_FROM)
  if tonumber(ttl) > tonumber(asked or 0) then call('ZADD', lock, 'GT', BEYOND + ttl, '+' .. token) end
  return lease_fence(token)
end

-- page lists at most count members of the lock's key, and their scores, in a range of scores: from first to last, downward if that is
-- less. It begins behind member, which had the score after; at first if member is empty, or if after is not in the range. If
-- member has another score by now, or none, it begins with the members that have the score after: these can be listed again.
local function page(first, last, after, member, count)
  local down, rank, list = first > last, nil, nil
  after = member ~= '' and tonumber(after) or first
  if after < math.min(first, last) or after > math.max(first, last) then after, member = first, '' end
  if member ~= '' and tonumber(call('ZSCORE', lock, member) or nil) == after then rank = call('ZRANK', lock, member) end
  local from, to = string.format('%.0f', after), string.format('%.0f', last)
  if rank and down then
    rank = call('ZCARD', lock) - 1 - rank
    list = call('ZRANGE', lock, rank + 1, rank + count, 'REV', 'WITHSCORES')
  elseif rank then
    list = call('ZRANGE', lock, rank + 1, rank + count, 'WITHSCORES')
  elseif down then
    list = call('ZRANGE', lock, from, to, 'BYSCORE', 'REV', 'LIMIT', 0, count, 'WITHSCORES')
  else
    list = call('ZRANGE', lock, from, to, 'BYSCORE', 'LIMIT', 0, count, 'WITHSCORES')
  end
  -- By rank, the list may go on behind the range.
  while #list > 0 and not down and tonumber(list[#list]) > last do
    list[#list], list[#list - 1] = nil, nil
  end
  return list
end

local function held_leases(after, token, count)
  local list, all, fences = page(now + 1, tonumber(ENDLESS), after, token, count), {}, {}
  for i = 1, #list, 2 do fences[#fences + 1] = '#' .. list[i] end
  if #list > 0 then fences = call('ZMSCORE', lock, unpack(fences)) end
  for i = 1, #list, 2 do
    all[#all + 1] = {list[i], tonumber(fences[(i + 1) / 2] or nil) or 0, math.ceil(list[i + 1] - now), math.ceil(list[i + 1]),
      list[i + 1] % 1 > 0 and 1 or 0}
  end
  return all, call('ZCOUNT', lock, '(' .. now, ENDLESS)
end
