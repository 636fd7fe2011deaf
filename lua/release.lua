-- release: ends whatever the token has, its lease or its place in the queue, and admits waiters. It does so for several tokens at once, if
-- nobody ever had their leases.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: the waiters and their heartbeats
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused
-- ARGV[1] token    of the request
-- ARGV[2] metadata_ttl  ms for which metadata is kept, see lib/metadata
-- ARGV[3] tombstone     ms during which a late copy of the request is refused; 0, or none: it is not
-- ARGV[4] cancel   0, or none: the lease was held; 1: the caller never learned of a lease
-- ARGV[5] yield    mutex: ms for which the key is left free after the lease, at most once in ten times as long; none: it is not
-- ARGV[5..] tokens  in place of yield if cancel is 1: others, a few hundred at most, of which tombstone and cancel hold as well
-- returns GRANTED: it had a lease | LEFT: it had a place | REFUSED: it had nothing. To that is added RELEASE_MORE if there is
--         more to admit, or RELEASE_QUEUE_EMPTY if the queue is empty. Of several tokens: GRANTED if
--         one had a lease, else LEFT if one had a place
-- writes KEYS[1..4], deletions first; work O(log n) for each token
-- include: lib/prelude
-- include: lib/constants
-- include: lib/metadata
-- include: lib/queue
-- include: lib/message
-- include: lib/admit
-- include: policy/KIND
local token, metadata_ttl, tombstone, cancel = ARGV[1], ARGV[2], tonumber(ARGV[3] or 0), ARGV[4]
local yield, tokens = ARGV[5], {token}
if cancel == '1' then
  yield = nil
  for i = 5, #ARGV do tokens[#tokens + 1] = ARGV[i] end
end
local run = load_metadata(metadata_ttl)
local outcome = end_lease(run, token, cancel, yield)
for i = 2, #tokens do outcome = math.max(outcome, end_lease(run, tokens[i], cancel)) end

if tombstone == 0 and not yield and call('EXISTS', queue) == 0 then
  call('ZREM', queue, '') -- it changes nothing, but fails on a read-only server, which must not say that there was no lease
  return run.type_error or outcome + RELEASE_QUEUE_EMPTY
end
-- A holder can be in the queue as well: if it repeated its request since a reply was lost, and was granted the lock past the waiters,
-- as a mutex is.
if (outcome == REFUSED or tombstone > 0 or tokens[2]) and dequeue(tokens) > 0 then
  run.head_stale = true
  if outcome == REFUSED then outcome = LEFT end
end
if tombstone > 0 then
  for _, given_up in ipairs(tokens) do write_tombstone(run, given_up, tombstone) end
end
-- With a type error nobody can be admitted. The waiters learn of it at their next heartbeats.
local more = run.type_error and 0 or admit(run)
save_metadata(run, run.metadata_ttl)
return run.type_error or outcome + (more > 0 and RELEASE_MORE or 0)
