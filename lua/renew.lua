-- renew: makes a lease that is still held last until ttl from now. It never restores one that has ended.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash; only given to keep it for a long lease, to read the fence, or to note a longer ttl
-- KEYS[3] queue    zset: token -> place; heartbeats, see lib/heartbeats; only given, with the next, if the lease is to end sooner than it would
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused
-- ARGV[1] token    of the lease
-- ARGV[2] ttl      ms from now to the lease's new end
-- ARGV[3] exact    1: also shorten a lease; 0: never shorten it, because this may be a late copy
-- ARGV[4] settings     see lib/settings
-- ARGV[5] retained  1: the process retains the lease, and asks whether it was recalled (mutex: with KEYS[2]); none: it does not
-- returns {GRANTED, fence, or 0 without KEYS[2], only if retained: 1 if it was recalled, else 0} | {REFUSED}
-- writes KEYS[1..4]; work O(log n)
local token, ttl, exact, settings, retained = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4], ARGV[5]
local recalled
-- include: policy/KIND/renew
if not renewed then return {REFUSED} end
if not meta and recalled then return {GRANTED, 0, recalled} end
if not meta then return {GRANTED, 0} end
-- include: lib/settings
-- include: lib/metadata
-- include: lib/token
-- include: lib/save_metadata
-- include: policy/KIND/confirm
fence = confirm(token, ttl)
-- The note of a ttl that is longer than the token's has to outlive the lease: without it the lease would be cut to the
-- token's ttl, as after the clock was set back.
local ms, _, _, asked = tonumber(ttl), string.match(token, TOKEN, -199)
local keep, min_left = metadata_ttl, nil
if ms > tonumber(asked or 0) then keep, min_left = metadata_ttl + ms, ms + 1000 end
if not queue then
  save_metadata(keep, false, min_left)
  return {GRANTED, fence, recalled}
end
-- include: lib/admit
-- The first waiter expects this lease to end later.
head_stale = true
admit()
save_metadata(keep, false, min_left)
return {GRANTED, fence, recalled}
