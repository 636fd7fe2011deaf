-- include: policy/leases/ends_at

-- waiting_upgrade is the token of the upgrade that waits, or was the last to wait, and that of its read lease; nil if the
-- read lease has ended.
local function waiting_upgrade()
  local token, origin = string.match(call('HGET', meta, 'upgrade') or '', '^(%S+) (%S+)$')
  if token and ends_at(origin) then return token, origin end
end
