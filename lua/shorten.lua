-- shorten: makes a lease that is still held end at ttl from now, sooner than it would have, and tells the first waiter, which expects it
-- to end later.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: the waiters and their heartbeats
-- ARGV[1] token    of the lease
-- ARGV[2] ttl      ms from now to the lease's new end
-- ARGV[3] metadata_ttl  ms for which metadata is kept, see lib/metadata
-- returns {GRANTED, fence} | {REFUSED}
-- writes KEYS[1..3]; work O(log n)
-- include: lib/prelude
-- include: lib/constants
-- include: lib/metadata
-- include: lib/queue
-- include: lib/message
-- include: lib/admit
-- include: policy/KIND
local token, ttl, metadata_ttl = ARGV[1], ARGV[2], ARGV[3]
local run = load_metadata(metadata_ttl)
local held = renew_lease(run, token, ttl, true)
if run.type_error then return run.type_error end
if not held then return {REFUSED} end
local fence = confirm(run, token, ttl)
run.head_stale = true
admit(run)
save_renewal(run, token, ttl)
return {GRANTED, fence}
