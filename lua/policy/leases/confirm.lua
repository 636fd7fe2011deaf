-- include: lib/token
-- include: policy/leases/scores
-- include: policy/leases/fence_of
local function confirm(token, ttl)
  local _, _, asked = string.match(token, TOKEN, -199)
  if tonumber(ttl) > tonumber(asked or 0) then call('ZADD', lock, BEYOND + ttl, '+' .. token) end
  return fence_of(token)
end
