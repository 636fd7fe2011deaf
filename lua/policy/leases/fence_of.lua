-- include: policy/leases/fence_at

-- fence_of is the fence of a lease.
local function fence_of(token)
  return fence_at(call('ZSCORE', lock, '#' .. token))
end
