-- tombstone: refuses a request that was cancelled while a copy of it was still under way. release and break write its
-- tombstone; see lib/write_tombstone.
-- On a refusal the script removes a waiter that does not exist: the write changes nothing, but it fails on a read-only
-- server, such as a replica, which must not say anything about the lock.
-- include: lib/metadata
if refused_until > now and call('ZSCORE', tombstones, token) then
  call('ZREM', queue, '')
  return {TOMBSTONED}
end
