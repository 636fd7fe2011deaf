-- include: lib/token
-- include: policy/leases/scores

-- cut is the end of a lease whose score is at. After the server's clock was set back that may be further away than the
-- lease's whole ttl, and is cut to that.
local function cut(token, at)
  local _, _, asked = string.match(token, TOKEN, -199)
  local ttl = tonumber(asked)
  if not ttl or at - now <= ttl then return at end
  ttl = math.max(ttl, (tonumber(call('ZSCORE', lock, '+' .. token)) or 0) - BEYOND)
  if at - now <= ttl then return at end
  call('ZADD', lock, now + ttl, token)
  head_stale = true
  return now + ttl
end
