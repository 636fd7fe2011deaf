-- include: lib/fence
-- include: lib/token

-- ms_left is for how long the lock's owner holds it. After the server's clock was set back that may be longer than the
-- lease's whole ttl, and is cut to that.
local function ms_left(owner)
  local left, _, _, ttl = call('PTTL', lock), string.match(owner, TOKEN, -199)
  ttl = tonumber(ttl)
  if not ttl or left <= ttl then return left end
  local longer, ms = string.match(call('HGET', meta, 'longer') or '', '^(.*) (%d+)$')
  if longer == owner then ttl = tonumber(ms) end
  if left <= ttl then return left end
  call('PEXPIRE', lock, ttl)
  head_stale = true
  return ttl
end

local function lease_of(token)
  if pcall('GET', lock) ~= token then return nil end
  return seq > 0 and seq or next_fence(), now + ms_left(token)
end
