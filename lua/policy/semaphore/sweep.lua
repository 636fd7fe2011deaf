-- include: policy/semaphore/terms
-- include: policy/semaphore/counts
-- include: policy/semaphore/remove

-- swept: nothing is left to sweep.
local swept

-- sweep removes up to a hundred expired leases, and up to a hundred @tokens whose permits have returned. An @token in the
-- future, since the clock was set back, is moved to the present.
local function sweep()
  local expired = call('ZRANGE', lock, 1, now, 'BYSCORE', 'LIMIT', 0, 100)
  local returned = spent > 0 and call('ZRANGE', lock, BY_CLOCK, BY_CLOCK + now - per - 1, 'BYSCORE', 'LIMIT', 0, 100) or {}
  swept = #expired < 100 and #returned < 100
  local add, gone = {}, {}
  for _, token in ipairs(expired) do
    used = used - terms_of(token)
    gone[#gone + 1] = token
    gone[#gone + 1] = '#' .. token
    gone[#gone + 1] = '+' .. token
  end
  for _, member in ipairs(returned) do
    local token = string.sub(member, 2)
    local n, holds = terms_of(token)
    spent = spent - n
    gone[#gone + 1] = member
    if not holds then gone[#gone + 1] = '#' .. token end
  end
  if #expired > 0 then set_count('used', used, add, gone) end
  if #returned > 0 then set_count('spent', spent, add, gone) end
  if spent > 0 then
    local ahead = call('ZRANGE', lock, '+inf', string.format('(%.0f', BY_CLOCK + now), 'BYSCORE', 'REV', 'LIMIT', 0, 100)
    swept = swept and #ahead < 100
    for _, member in ipairs(ahead) do
      add[#add + 1] = BY_CLOCK + now
      add[#add + 1] = member
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
