-- include: lib/clock
-- include: policy/KIND/place

-- enqueue adds a token to the queue, unless it is there already. It returns its place, and true if that is certainly the last.
-- Tickets increase like fences, with a counter of their own, the meta field ticket: the fence of a mutex's lease is the last one.
local function enqueue(token)
  local ticket = (tonumber(call('HGET', meta, 'ticket')) or 0) + 1
  local text = ticket
  if ticket <= now_us then ticket, text = now_us, now_us_text or now_us end
  call('HSET', meta, 'ticket', text)
  local at, is_last = place(ticket, token, token == try_token)
  if call('ZADD', queue, 'NX', at == ticket and text or at, token) == 1 then return at, is_last end
  return tonumber(call('ZSCORE', queue, token))
end
