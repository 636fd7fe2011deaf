-- include: lib/metadata
-- include: policy/KIND/place

-- enqueue adds a token to the queue, unless it is there already, and returns its place. Tickets increase like fences, with a
-- counter of their own, which save_metadata writes: the fence of a mutex's lease is the last one.
local function enqueue(token)
  ticket = math.max(ticket + 1, now_us)
  local at = place(ticket, token, token == try_token)
  if call('ZADD', queue, 'NX', at, token) == 1 then return at end
  return tonumber(call('ZSCORE', queue, token))
end
