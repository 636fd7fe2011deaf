-- downgrade: makes a lease that writes read, and admits readers. A repeated call changes nothing more, and a late one nothing at all: it
-- names the fence that the lease had.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: the waiters and their heartbeats
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused
-- ARGV[1] token    of the lease
-- ARGV[2] fence    that it has
-- ARGV[3] metadata_ttl  ms for which metadata is kept, see lib/metadata
-- ARGV[4] upgrade  the token of the request that has made it write, if a copy of that may still be under way; else empty
-- ARGV[5] tombstone     ms during which a copy of that request is refused
-- returns {GRANTED, fence, NOTE_MORE if there is more to admit or 0} | {REFUSED}: there is no lease, or the call is late
-- writes KEYS[1..4]; work O(log n)
-- include: lib/prelude
-- include: lib/constants
-- include: lib/metadata
-- include: lib/queue
-- include: lib/message
-- include: lib/admit
-- include: policy/KIND
local token, fence, metadata_ttl, upgrade, tombstone = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local run = load_metadata(metadata_ttl)
local at = ends_at(token)
if not at or writes(token, at) and (lease_fence(token) or 0) > fence then
  call('ZREM', queue, '') -- it changes nothing, but fails on a read-only server
  return {REFUSED}
end
if writes(token, at) then convert(run, token, at, false) end
if upgrade ~= '' then write_tombstone(run, upgrade, tonumber(tombstone)) end
local more = admit(run)
save_metadata(run, run.metadata_ttl)
return {GRANTED, lease_fence(token), more}
