-- include: lib/fence
-- include: lib/token

-- A token of another library has drawn no fence, so it gets one now. The meta field longer is a lease that was extended
-- beyond what its token asked for: its token and its ttl.
local function confirm(token, ttl)
  local _, _, asked = string.match(token, TOKEN, -199)
  if tonumber(ttl) > tonumber(asked or 0) then call('HSET', meta, 'longer', token .. ' ' .. ttl) end
  return asked and seq > 0 and seq or next_fence()
end
