-- include: policy/leases/ends_at
-- include: policy/leases/cut
-- include: policy/leases/fence_of
local function lease_of(token)
  local at = ends_at(token)
  if at then return fence_of(token), cut(token, at) end
end
