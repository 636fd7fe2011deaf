-- queue: the waiters and their heartbeats; how they are encoded says lib/constants. A token and its heartbeat are added by one command,
-- and removed by one; a try, which is in the queue during its script only, has no heartbeat.
-- include: policy/KIND

-- enqueue adds a token to the queue, unless it is there already, with a heartbeat that lapses at this ms, or without one if that is nil.
-- It returns the place, and true if that is certainly the last. Tickets increase like fences, with a counter of their own: the fence
-- of a mutex's lease is the last one.
local function enqueue(token, lapse, try)
  local ticket = math.max(now_us, (tonumber(call('HGET', meta, 'ticket')) or 0) + 1)
  call('HSET', meta, 'ticket', ticket == now_us and now_us_text or ticket)
  local at, is_last = place(ticket, token, try)
  local score, member = at == now_us and now_us_text or at, '+' .. token
  if lapse and call('ZADD', queue, 'NX', score, token, HEARTBEATS + lapse, member) == 2 then return at, is_last end
  if lapse then
    call('ZADD', queue, HEARTBEATS + lapse, member)
  elseif call('ZADD', queue, 'NX', score, token) == 1 then
    return at, is_last
  end
  return tonumber(call('ZSCORE', queue, token)), false
end

-- requeue adds a token at the place that it had. If the server has lost its data, the last ticket may be an earlier one: then those who
-- arrive from now on are behind it, also if the clock is ahead of them or is set back later.
local function requeue(token, at)
  call('ZADD', queue, at, token)
  local ticket = ticket_of(at)
  if ticket > (tonumber(call('HGET', meta, 'ticket')) or 0) then call('HSET', meta, 'ticket', ticket) end
end

-- dequeue removes waiters and their heartbeats from the queue: at most a few hundred tokens. It returns how many members it has removed.
local function dequeue(tokens)
  local members = {}
  for i, token in ipairs(tokens) do members[2 * i - 1], members[2 * i] = token, '+' .. token end
  return members[1] and call('ZREM', queue, unpack(members)) or 0
end

-- first_waiters returns the waiters up to this rank. What follows them in the queue are heartbeats.
local function first_waiters(last)
  local list = call('ZRANGE', queue, '0', last)
  for i = #list, 1, -1 do
    if string.sub(list[i], 1, 1) ~= '+' then break end
    list[i] = nil
  end
  return list
end

-- lapses_of returns the ms at which the heartbeats of waiters lapse: at most a few hundred tokens. It is 0 for one that has none, and
-- UNSUBSCRIBED more for one whose keeper is not subscribed.
local function lapses_of(tokens)
  local members = {}
  for i, token in ipairs(tokens) do members[i] = '+' .. token end
  local lapses = call('ZMSCORE', queue, unpack(members))
  for i = 1, #members do lapses[i] = lapses[i] and lapses[i] - HEARTBEATS or 0 end
  return lapses
end
