-- renew: makes a lease that is still held last until ttl from now, and keeps the metadata for it. It never shortens a lease, since a late copy
-- of an earlier renewal may arrive, and never restores one that has ended.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- ARGV[1] token    of the lease
-- ARGV[2] ttl      ms from now for which the lease lasts at least
-- ARGV[3] metadata_ttl  ms for which metadata is kept, see lib/metadata
-- returns {GRANTED, fence}, and 1 if the lease was converted | {REFUSED}
-- writes KEYS[1..2]; work O(log n)
-- include: lib/prelude
-- include: lib/constants
-- include: lib/metadata
-- include: policy/KIND
local token, ttl, metadata_ttl = ARGV[1], ARGV[2], ARGV[3]
local run = load_metadata(metadata_ttl)
local held = renew_lease(run, token, ttl)
if run.type_error then return run.type_error end
if not held then return {REFUSED} end
local fence = confirm(run, token, ttl)
save_renewal(run, token, ttl)
return {GRANTED, fence, run.converted}
