-- A writer, or a reader that nobody waits behind, if the lock has become free and no readers go first. Upgrades and several readers
-- are left to lib/admit.
-- include: policy/rwlock/flags
-- include: policy/leases/scores
-- include: policy/rwlock/streak
local heir_purpose
if outcome == GRANTED and not tombstone and call('EXISTS', lock) == 0 then
  -- Nobody waits behind it if the next member is a heartbeat.
  alone, heir_purpose = string.byte(heads[2] or '+') == 43, string.match(heads[1], FLAG, -20)
  if alone and heir_purpose == 'r' or heir_purpose == 'w' and (alone or not call('HGET', meta, 'pass')) then heir = heads[1] end
end
