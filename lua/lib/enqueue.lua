-- include: lib/clock
-- include: lib/heartbeats
-- include: policy/KIND/place

-- enqueue adds a token to the queue, unless it is there already, with a heartbeat that lapses at this ms, or without one if that is
-- nil. It returns the place, and true if that is certainly the last.
-- Tickets increase like fences, with a counter of their own, the meta field ticket: the fence of a mutex's lease is the last one.
local function enqueue(token, lapse)
  local ticket = (tonumber(call('HGET', meta, 'ticket')) or 0) + 1
  local text = ticket
  if ticket <= now_us then ticket, text = now_us, now_us_text or now_us end
  call('HSET', meta, 'ticket', text)
  local at, is_last = place(ticket, token, token == try_token)
  if at == ticket then ticket = text else ticket = at end
  if not lapse then
    if call('ZADD', queue, 'NX', ticket, token) == 1 then return at, is_last end
  else
    local member = '+' .. token
    lapse = HEARTBEATS + lapse
    if call('ZADD', queue, 'NX', ticket, token, lapse, member) == 2 then return at, is_last end
    call('ZADD', queue, lapse, member)
  end
  return tonumber(call('ZSCORE', queue, token))
end
