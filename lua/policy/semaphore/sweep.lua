-- include: policy/leases/scores
-- include: policy/semaphore/terms
-- include: policy/semaphore/counts
-- include: policy/semaphore/remove
-- include: policy/semaphore/take_now
-- include: policy/semaphore/returned

-- swept: nothing is left to sweep.
local swept

-- sweep removes up to a hundred expired leases, and up to a hundred @tokens whose permits have returned. An @token in the
-- future, since the clock was set back, is moved to the present; its fence stays.
local function sweep()
  local first = used > 0 and call('ZRANGE', lock, '1', ENDLESS, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')[2]
  local expired, out, gone = {}, {}, {}
  first_end = tonumber(first or nil)
  if first_end and first_end <= now then
    expired, first_end = call('ZRANGE', lock, '1', now, 'BYSCORE', 'LIMIT', '0', '100'), nil
  end
  if spent > 0 then out = call('ZRANGE', lock, TAKEN, returned() + 1, 'BYSCORE', 'REV', 'LIMIT', '0', '100') end
  swept = #expired < 100 and #out < 100
  for _, token in ipairs(expired) do
    used = used - terms_of(token)
    gone[#gone + 1] = token
    gone[#gone + 1] = '#' .. token
    gone[#gone + 1] = '+' .. token
  end
  for _, member in ipairs(out) do
    local token = string.sub(member, 2)
    local n, holds = terms_of(token)
    spent = spent - n
    gone[#gone + 1] = member
    if not holds then gone[#gone + 1] = '#' .. token end
  end
  local newest = spent > 0 and tonumber(call('ZRANGE', lock, '0', '0', 'WITHSCORES')[2])
  if newest and newest < -now_us then
    local ahead = call('ZRANGE', lock, '-inf', -now_us - 1, 'BYSCORE', 'LIMIT', '0', '100', 'WITHSCORES')
    swept = swept and #ahead < 200
    for i = 1, #ahead, 2 do
      take_now(ahead[i], ahead[i + 1])
    end
  end
  if #gone > 0 then drop(gone) end
end

-- has_room says whether so many permits may be had now. If it seems not, it sweeps, at most twice in a script.
local sweeps = 0
local function has_room(n, holds, by_clock)
  while full(n, holds, by_clock) do
    if swept then return false end
    if sweeps == 2 then
      unswept = true
      return false
    end
    sweeps = sweeps + 1
    sweep()
  end
  return true
end
