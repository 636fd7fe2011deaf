-- include: policy/leases/fence_of
local function holders(skip, count)
  local list = call('ZRANGE', lock, '(' .. now, ENDLESS, 'BYSCORE', 'LIMIT', skip, count, 'WITHSCORES')
  local all = {}
  for i = 1, #list, 2 do
    all[#all + 1] = {list[i], fence_of(list[i]) or 0, list[i + 1] - now}
  end
  return all
end
