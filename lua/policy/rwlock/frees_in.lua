-- include: policy/leases/ends_at
-- include: policy/rwlock/state
-- include: policy/rwlock/upgrade

-- An upgrade does not wait for the lease that it replaces.
local function frees_in()
  -- What has cut a lease meanwhile has set head_stale.
  if state_known and writer_holds and holder_until and not head_stale then return holder_until - now end
  local last = call('ZRANGE', lock, ENDLESS, '(' .. now, 'BYSCORE', 'REV', 'LIMIT', '0', '2', 'WITHSCORES')
  if last[3] and last[1] == select(2, waiting_upgrade()) then return last[4] - now end
  return last[2] and last[2] - now or 0
end
