-- include: lib/token
-- include: policy/leases/scores
local function confirm(token, ttl)
  local _, _, asked = string.match(token, TOKEN)
  if tonumber(ttl) > tonumber(asked or 0) then call('ZADD', lock, BEYOND + ttl, '+' .. token) end
  return tonumber(call('ZSCORE', lock, '#' .. token))
end
