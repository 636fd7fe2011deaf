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
  local expired = call('ZRANGE', lock, 1, now, 'BYSCORE', 'LIMIT', 0, 100)
  local out = spent > 0 and call('ZRANGE', lock, TAKEN, returned() + 1, 'BYSCORE', 'REV', 'LIMIT', 0, 100) or {}
  swept = #expired < 100 and #out < 100
  local add, gone = {}, {}
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
  if #expired > 0 then set_count('used', used, add, gone) end
  if #out > 0 then set_count('spent', spent, add, gone) end
  local newest = spent > 0 and tonumber(call('ZRANGE', lock, 0, 0, 'WITHSCORES')[2])
  if newest and newest < -now_us then
    local ahead = call('ZRANGE', lock, '-inf', -now_us - 1, 'BYSCORE', 'LIMIT', 0, 100, 'WITHSCORES')
    swept = swept and #ahead < 200
    for i = 1, #ahead, 2 do
      take_now(ahead[i], ahead[i + 1])
    end
  end
  write(add, gone)
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
