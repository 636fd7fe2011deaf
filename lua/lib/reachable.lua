-- include: lib/queue
-- include: lib/message

-- reachable says whether a waiter can receive a message, or needs none.
local function reachable(keeper, flags)
  if unreachable[keeper] then return false end
  return string.find(flags, 's', 1, true) ~= nil or subscribed(keeper)
end
