-- include: policy/leases/scores
-- include: policy/leases/keep_lock

-- put writes a lease of ms. fresh says that there is no other, retained that its process is to grant reads by it.
local function put(token, ms, fence, fresh, retained)
  if retained then fence = fence + RETAINED - ENDLESS end
  call('ZADD', lock, now + ms, token, fence, '#' .. token)
  keep_lock(ms, fresh)
end
