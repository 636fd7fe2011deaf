-- release: ends whatever the token has, its lease or its place in the queue, and admits waiters.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: token -> place
-- KEYS[4] heartbeats    zset: token -> ms at which its heartbeat lapses
-- ARGV[1] token    of the request
-- ARGV[2] metadata_ttl     ms for which the metadata is kept
-- ARGV[3] channel_prefix    of the keepers' channels
-- ARGV[4] sharded  1: messages go by sharded channels, 0: by plain ones
-- ARGV[5] tombstone     ms during which a late copy of the request is refused; 0: none
-- ARGV[6] cancel   0: the lease was held; 1: the caller never learned of a lease; 2: as 1, but a lease that has replaced
--                  another is kept, and the reply is HELD
-- returns {GRANTED: it had a lease | LEFT: it had a place | REFUSED: it had nothing | HELD: it has a lease;
--           more: 1 if there is more to admit, 2 if the queue is empty}
-- writes KEYS[1..4], deletions first; work O(log n)
local token, tombstone, cancel = ARGV[1], ARGV[5], ARGV[6]
-- include: policy/KIND/release
local first = call('ZRANGE', queue, 0, 0)
if tombstone == '0' and #first == 0 then
  -- This write changes nothing. It fails on a read-only server, which must not say that there was no lease.
  if outcome == REFUSED then call('ZREM', queue, '') end
  return type_error or {outcome, 2}
end
local metadata_ttl, channel_prefix, sharded = tonumber(ARGV[2]), ARGV[3], ARGV[4]
-- include: lib/metadata
-- include: lib/save_metadata
-- include: lib/admit
head_stale = freed
-- A holder can be in the queue as well: if it repeated its request since a reply was lost, and was granted the lock past
-- the waiters, as a mutex is.
if (outcome == REFUSED or tombstone ~= '0') and call('ZREM', queue, token) == 1 then
  call('ZREM', heartbeats, token)
  head_stale = true
  if outcome == REFUSED then outcome = LEFT else first = call('ZRANGE', queue, 0, 0) end
end
if tombstone ~= '0' then
  -- lib/tombstone refuses the request by this.
  -- include: lib/extend_expiry
  call('ZADD', heartbeats, now + tombstone, '-' .. token)
  extend_expiry(heartbeats, tonumber(tombstone))
  call('HSET', meta, 'tombstones', now + tombstone)
end
-- With a type error nobody can be admitted. The waiters learn of it at their next heartbeats.
local more = type_error and 0 or admit(outcome == GRANTED and IN_ORDER and first)
save_metadata(metadata_ttl)
return type_error or {outcome, more}
