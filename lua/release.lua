-- release: ends whatever the token has, its lease or its place in the queue, and admits waiters.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name; for the short form the queue
-- KEYS[3] queue    zset: token -> place; heartbeats, see lib/heartbeats; none for the short form
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused; only with a tombstone
-- ARGV[1] token    of the request
-- ARGV[2] settings     see lib/settings; none for the short form
-- ARGV[3] tombstone     ms during which a late copy of the request is refused; 0, or none: it is not
-- ARGV[4] cancel   0, or none: the lease was held; 1: the caller never learned of a lease; 2: as 1, but a lease that has replaced
--                  another is kept, and the reply is HELD
-- ARGV[5] yield    mutex: ms for which the key is left free after the lease, at most once in ten times as long; none: it is not
-- returns 0: nothing was done, since others wait; the long form is needed (only from the short form)
--       | a code, plus 16 if there is more to admit, or plus 32 if the queue is empty. The code is
--         GRANTED: it had a lease | LEFT: it had a place | REFUSED: it had nothing | HELD: it has a lease
-- writes KEYS[1..4], deletions first; work O(log n)
local token, settings, cancel, yield = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
local tombstone = settings and ARGV[3] ~= '0' and tonumber(ARGV[3])
if not settings then
  queue = meta
  if call('EXISTS', queue) == 1 then return 0 end
end
-- include: policy/KIND/release
local heads = settings and call('ZRANGE', queue, '0', '1')
if not heads or not heads[1] and not yield then
  if ended then call('DEL', ended) end
  if not tombstone then
    -- This write changes nothing. It fails on a read-only server, which must not say that there was no lease.
    if outcome == REFUSED then call('ZREM', queue, '') end
    return type_error or outcome + 32
  end
end
-- include: lib/clock
-- include: lib/yield
-- include: lib/hand_on
-- include: lib/settings
-- include: lib/metadata
-- include: lib/save_metadata
if ended and (heads[1] or yield) and not fence then call('DEL', ended) end
-- The sequence is negative meanwhile, as while there may be tombstones: so the short form of acquire grants nothing.
if yields and type(pcall('HSET', meta, 'yield', string.format('%.0f %s', yields, yield), 'tombstones', math.max(refused_until, yields))) ~= 'table' then
  refused_until, head_stale = math.max(refused_until, yields), true
end
-- include: lib/admit
head_stale = head_stale or freed
-- A holder can be in the queue as well: if it repeated its request since a reply was lost, and was granted the lock past
-- the waiters, as a mutex is.
if (outcome == REFUSED or tombstone) and dequeue({token}) > 0 then
  head_stale = true
  if outcome == REFUSED then outcome = LEFT end
end
if tombstone then
  -- include: lib/write_tombstone
  write_tombstone(token, tombstone)
end
-- With a type error nobody can be admitted. The waiters learn of it at their next heartbeats.
local more = type_error and 0 or admit()
save_metadata(metadata_ttl)
return type_error or outcome + 16 * more
