-- include: policy/semaphore/state
-- include: policy/leases/keep_lock

-- enter writes what is granted to a token of which the key has nothing: a lease of ms, and what it takes by the clock.
local function enter(token, ms, fence, n, holds, by_clock)
  local add, fresh = {fence, '#' .. token}, used + spent == 0
  local keep = 0
  if holds then
    used, keep = used + n, tonumber(ms)
    add[3], add[4], add[5], add[6] = now + ms, token, -used, 'used'
  end
  if by_clock then
    spent, keep = spent + n, math.max(keep, per)
    local i = #add
    add[i + 1], add[i + 2], add[i + 3], add[i + 4] = BY_CLOCK + now, '@' .. token, -spent, 'spent'
  end
  call('ZADD', lock, unpack(add))
  keep_lock(keep, fresh)
end
