-- include: policy/leases/cut

-- It checks the hundred leases that last longest.
local function maintain()
  local list = call('ZRANGE', lock, ENDLESS, '(' .. now, 'BYSCORE', 'REV', 'LIMIT', 0, 100, 'WITHSCORES')
  for i = 1, #list, 2 do cut(list[i], tonumber(list[i + 1])) end
end
