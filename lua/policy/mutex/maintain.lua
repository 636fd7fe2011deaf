-- include: policy/KIND/lease_of

-- A waiter may be the holder itself, by a copy of its request that arrived late. It is told so now. A lease that a process retains is
-- recalled for waiters, which may have come back to the queue since it was granted. (In acquire, existing has recalled it.)
local function maintain()
  local owner = pcall('GET', lock)
  if type(owner) == 'table' then type_error = owner end
  if type(owner) ~= 'string' then return end
  ms_left(owner)
  if callers[owner] then
    dequeue({owner})
    granted[owner], head_stale = {lease_of(owner)}, true
  elseif next(callers) and string.sub(owner, -1) == 'k' then
    -- include: policy/mutex/recall
  end
end
