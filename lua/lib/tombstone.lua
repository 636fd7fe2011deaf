-- tombstone: refuses a request that was cancelled while a copy of it was still under way. release writes its tombstone: the
-- member -<token> of the heartbeats, with the ms until which it counts. It expires and is swept like a heartbeat.
-- On a refusal the script removes a waiter that does not exist: the write changes nothing, but it fails on a read-only
-- server, such as a replica, which must not say anything about the lock.
-- include: lib/metadata
if tombstones > now and call('ZSCORE', heartbeats, '-' .. token) then
  call('ZREM', queue, '')
  return {TOMBSTONED}
end
