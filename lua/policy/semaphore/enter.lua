-- include: policy/semaphore/keep_window
-- include: policy/leases/keep_lock

-- What is granted and not written yet: scores and members, for how many ms they are kept, and whether the key has nothing else.
-- The counts include it.
local unwritten, unwritten_ms, unwritten_fresh = {}, 0, false

-- enter grants a lease of ms, and what it takes by the clock, to a token of which the key has nothing.
local function enter(token, ms, fence, n, holds, by_clock)
  local list, i = unwritten, #unwritten
  if i == 0 then unwritten_fresh = used + spent == 0 end
  local score = fence == now_us and now_us_text or string.format('%.0f', fence)
  if holds then
    list[i + 1], list[i + 2], i = now + ms, token, i + 2
    used, unwritten_ms = used + n, math.max(unwritten_ms, ms)
  end
  if by_clock then
    list[i + 1], list[i + 2], i = fence == now_us and '-' .. score or -now_us, '@' .. token, i + 2
    spent, unwritten_ms = spent + n, math.max(unwritten_ms, keep_window())
  end
  if holds or fence ~= now_us then list[i + 1], list[i + 2] = score, '#' .. token end
end

-- write_entered writes it.
local function write_entered()
  local i = #unwritten
  if i == 0 then return end
  if used > 0 then unwritten[i + 1], unwritten[i + 2], i = -used, 'used', i + 2 end
  if spent > 0 then unwritten[i + 1], unwritten[i + 2] = -spent, 'spent' end
  call('ZADD', lock, unpack(unwritten))
  if window < math.huge then call('HDEL', meta, 'window') end
  keep_lock(unwritten_ms, unwritten_fresh)
  unwritten, unwritten_ms, first_end = {}, 0, nil
end
