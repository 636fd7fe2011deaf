-- include: policy/leases/ends_at
-- include: policy/leases/cut
local function lease_of(token)
  local at = ends_at(token)
  if at then return tonumber(call('ZSCORE', lock, '#' .. token)), cut(token, at) end
end
