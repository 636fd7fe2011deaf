-- include: policy/rwlock/purpose
-- include: policy/rwlock/remove
-- include: policy/leases/ends_at

-- writer_holds, readers_hold: whether the lock is held for writing, or for reading. holder is one of the leases, or nil; sole
-- says that there is no other, and holder_until when its lease ends. They are valid if state_known is true.
local state_known, writer_holds, readers_hold, holder, sole, holder_until

-- read_state sets them. If there are expired leases, it sweeps up to a hundred of them.
local function read_state()
  if state_known then return end
  -- Most leases that are released were alone.
  if outcome == GRANTED and call('EXISTS', lock) == 0 then
    state_known, holder, sole, readers_hold, writer_holds = true, nil, false, false, false
    return
  end
  local list = call('ZRANGE', lock, '1', ENDLESS, 'BYSCORE', 'LIMIT', '0', '2', 'WITHSCORES')
  if list[1] and tonumber(list[2]) <= now then
    for _, token in ipairs(call('ZRANGE', lock, '1', now, 'BYSCORE', 'LIMIT', '0', '100')) do remove(token) end
    list = call('ZRANGE', lock, '(' .. now, ENDLESS, 'BYSCORE', 'LIMIT', '0', '2', 'WITHSCORES')
  end
  state_known, holder, sole, holder_until = true, list[1], #list == 2, tonumber(list[2])
  local purpose = holder and purpose_of(holder)
  readers_hold = holder ~= nil and (purpose == 'r' or purpose == 'd')
  writer_holds = holder ~= nil and not readers_hold
end
