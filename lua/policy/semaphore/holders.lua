-- include: policy/leases/holders
-- include: policy/semaphore/load_limits
-- include: policy/semaphore/returned
local held_leases = holders

-- Where nothing is held, these are the tokens whose permits have not returned.
local function holders(skip, count)
  if not at_once or at_once < math.huge then return held_leases(skip, count) end
  local list = call('ZRANGE', lock, returned(), '-inf', 'BYSCORE', 'REV', 'LIMIT', skip, count, 'WITHSCORES')
  local all = {}
  for i = 1, #list, 2 do
    local token, score = string.sub(list[i], 2), list[i + 1]
    all[#all + 1] = {token, tonumber(call('ZSCORE', lock, '#' .. token) or -score), return_in(score)}
  end
  return all
end
