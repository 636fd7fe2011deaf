-- release: ends whatever the token has, its lease or its place in the queue, and admits waiters.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: the waiters and their heartbeats
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused
-- ARGV[1] token    of the request
-- ARGV[2] settings     see lib/metadata
-- ARGV[3] tombstone     ms during which a late copy of the request is refused; 0, or none: it is not
-- ARGV[4] cancel   0, or none: the lease was held; 1: the caller never learned of a lease; 2: as 1, but a lease that has replaced
--                  another is kept, and the reply is HELD
-- ARGV[5] yield    mutex: ms for which the key is left free after the lease, at most once in ten times as long; none: it is not
-- returns GRANTED: it had a lease | LEFT: it had a place | REFUSED: it had nothing | HELD: it has a lease. To that is added RELEASE_MORE if
--         there is more to admit, or RELEASE_QUEUE_EMPTY if the queue is empty
-- writes KEYS[1..4], deletions first; work O(log n)
-- include: lib/prelude
-- include: lib/constants
-- include: lib/metadata
-- include: lib/queue
-- include: lib/message
-- include: lib/admit
-- include: policy/KIND
local token, settings, tombstone, cancel, yield = ARGV[1], ARGV[2], tonumber(ARGV[3] or 0), ARGV[4], ARGV[5]
local run = load_metadata(settings)
local outcome = end_lease(run, token, cancel, yield)
if outcome == HELD then return HELD end

if tombstone == 0 and not yield and call('EXISTS', queue) == 0 then
  call('ZREM', queue, '') -- it changes nothing, but fails on a read-only server, which must not say that there was no lease
  return run.type_error or outcome + RELEASE_QUEUE_EMPTY
end
-- A holder can be in the queue as well: if it repeated its request since a reply was lost, and was granted the lock past the waiters,
-- as a mutex is.
if (outcome == REFUSED or tombstone > 0) and dequeue({token}) > 0 then
  run.head_stale = true
  if outcome == REFUSED then outcome = LEFT end
end
if tombstone > 0 then write_tombstone(run, token, tombstone) end
-- With a type error nobody can be admitted. The waiters learn of it at their next heartbeats.
local more = run.type_error and 0 or admit(run)
save_metadata(run, run.metadata_ttl)
return run.type_error or outcome + (more > 0 and RELEASE_MORE or 0)
