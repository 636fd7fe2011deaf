-- include: policy/rwlock/purpose
-- include: policy/rwlock/readers
local function place(ticket, token, try)
  local purpose = purpose_of(token)
  if try or purpose == 'r' then return ticket + READERS, true end
  return purpose == 'u' and math.floor(ticket / 1000) or ticket
end
