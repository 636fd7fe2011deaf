-- include: policy/semaphore/keep_window
-- include: policy/leases/keep_lock

-- enter writes what is granted to a token of which the key has nothing: a lease of ms, and what it takes by the clock.
local function enter(token, ms, fence, n, holds, by_clock)
  local add, fresh, keep = {}, used + spent == 0, 0
  if holds then
    used, keep = used + n, tonumber(ms)
    add[1], add[2], add[3], add[4] = now + ms, token, -used, 'used'
  end
  if by_clock then
    spent, keep = spent + n, math.max(keep, keep_window())
    local i = #add
    add[i + 1], add[i + 2], add[i + 3], add[i + 4] = -now_us, '@' .. token, -spent, 'spent'
  end
  if holds or fence ~= now_us then
    local i = #add
    add[i + 1], add[i + 2] = fence, '#' .. token
  end
  call('ZADD', lock, unpack(add))
  if by_clock then call('HDEL', meta, 'window') end
  keep_lock(keep, fresh)
end
