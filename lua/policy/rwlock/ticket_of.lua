-- include: policy/rwlock/readers
local function ticket_of(at)
  if at < 100000000000000 then return at * 1000 end
  return at > tonumber(READERS) and at - READERS or at
end
