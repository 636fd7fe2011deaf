-- include: lib/metadata
-- include: policy/KIND/place

-- enqueue adds a newcomer to the queue and returns its place. Tickets increase like fences, with a counter of their own.
local function enqueue(token)
  local ticket = math.max((tonumber(call('HGET', meta, 'ticket')) or 0) + 1, now_us)
  call('HSET', meta, 'ticket', ticket)
  local at = place(ticket, token, token == try_token)
  call('ZADD', queue, at, token)
  return at
end
