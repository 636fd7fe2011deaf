-- include: lib/token
-- include: policy/rwlock/remove
-- include: policy/leases/ends_at
-- include: policy/rwlock/put

-- replace writes a lease that replaces another, origin, which ends. It lasts for ms, and at least for what the other had
-- left: a holder that has not learned of the new lease yet relies on the old one.
local function replace(origin, token, ms, fence, fresh)
  local _, _, origin_ttl = string.match(origin, TOKEN, -199)
  local _, _, ttl = string.match(token, TOKEN, -199)
  local left = (ends_at(origin) or now) - now
  local extended = (tonumber(call('ZSCORE', lock, '+' .. origin)) or 0) - BEYOND
  ms = math.max(tonumber(ms), math.min(left, math.max(tonumber(origin_ttl or 0), extended)))
  remove(origin)
  if ms > tonumber(ttl) then call('ZADD', lock, BEYOND + ms, '+' .. token) end
  put(token, ms, fence, fresh)
end
