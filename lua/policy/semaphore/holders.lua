-- include: policy/leases/holders
-- include: policy/semaphore/load_limits
local held_leases = holders

-- Where nothing is held, these are the tokens whose permits have not returned.
local function holders(skip, count)
  if not at_once or at_once < math.huge then return held_leases(skip, count) end
  local list = call('ZRANGE', lock, BY_CLOCK + now - per, '+inf', 'BYSCORE', 'LIMIT', skip, count, 'WITHSCORES')
  local all = {}
  for i = 1, #list, 2 do
    local token = string.sub(list[i], 2)
    local left = list[i + 1] - BY_CLOCK + per + 1 - now
    all[#all + 1] = {token, tonumber(call('ZSCORE', lock, '#' .. token)) or 0, left}
  end
  return all
end
