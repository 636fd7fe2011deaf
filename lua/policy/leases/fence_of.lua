-- include: policy/leases/scores

-- fence_of is the fence of a lease.
local function fence_of(token)
  local fence = tonumber(call('ZSCORE', lock, '#' .. token))
  return fence and fence >= RETAINED and fence - RETAINED + ENDLESS or fence
end
