-- break: ends what the token of somebody else has, its lease or its place in the queue, tells its keeper so, and admits waiters.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: the waiters and their heartbeats
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused
-- ARGV[1] token    of the lease or the waiter
-- ARGV[2] metadata_ttl  ms for which metadata is kept, see lib/metadata
-- ARGV[3] tombstone     ms during which a copy of its request is refused, and the waiter does not return to the queue
-- ARGV[4] policy_arg  semaphore: the limits in force, in case they are lost; empty for others
-- ARGV[5] notice   the word that the keeper gets with the token's serial; see lib/message
-- returns {code, 1 if its keeper was told, else 0, 1 if there is more to admit, else 0}. The code is
--         GRANTED: it had a lease | LEFT: it had a place | REFUSED: it had nothing, and nothing was done
-- writes KEYS[1..4], deletions first; work O(log n)
-- include: lib/prelude
-- include: lib/constants
-- include: lib/metadata
-- include: lib/queue
-- include: lib/message
-- include: lib/admit
-- include: policy/KIND
local token, metadata_ttl, tombstone, policy_arg, notice = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local run = load_metadata(metadata_ttl, policy_arg)
-- The lease was in use: what it has taken by the clock stays taken.
local outcome = end_lease(run, token, '0')
-- A holder can be in the queue as well; see release.
if dequeue({token}) > 0 and outcome == REFUSED then outcome = LEFT end
if run.type_error or outcome == REFUSED then return run.type_error or {REFUSED, 0, 0} end
write_tombstone(run, token, tombstone)
-- For whom the message does not reach; inspect finds it.
call('ZADD', tombstones, now + tombstone, token .. ' ' .. notice)

local keeper, serial = string.match(token, TOKEN, TOKEN_FROM)
local receivers = keeper and publish(keeper, serial .. ' ' .. notice) or 0
run.head_stale = true
local more = admit(run)
save_metadata(run, run.metadata_ttl)
return {outcome, receivers > 0 and 1 or 0, more}
