-- renew: make a lease that is still held last until ttl from now. It never takes one again that is over.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash, given only now and then: to keep it for a long lease, to learn the fence, to note a longer ttl
-- KEYS[3] queue    zset: token -> place; given, with the next, only if the lease is to end sooner than it would
-- KEYS[4] heartbeats    zset: token -> ms at which its heartbeat lapses
-- ARGV[1] token    of the acquisition
-- ARGV[2] ttl      ms from now to the lease's new end
-- ARGV[3] idle     ms that the meta hash is kept for
-- ARGV[4] exact    1: also if it ends sooner then; 0: a lease that lasts longer stays as it is, because this may be a
--                  late copy
-- ARGV[5] wake     prefix of the wake-up channels
-- ARGV[6] sharded  1: wake-ups go by sharded channels, 0: by plain ones
-- returns {GRANTED, fence, or 0 without KEYS[2]} | {REFUSED}
-- writes KEYS[1..4]; work O(log n)
local token, ttl, idle, exact = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local wake, sharded = ARGV[5], ARGV[6]
-- include: policy.extend
if not held then return {REFUSED} end
if not meta then return {GRANTED, 0} end
-- include: metadata
-- include: queue
fence = confirm(token, ttl)
if queue then
  -- Whoever stands first in line expects this lease to end later.
  changed = true
  admit()
end
-- The note of a ttl that is longer than the token's has to outlive the lease: without it the lease would be cut to the
-- token's ttl, as after a clock that was set back.
local ms = tonumber(ttl)
if ms > (ttl_of(token) or 0) then save_metadata(idle + ms, false, ms + 1000) else save_metadata(idle) end
return {GRANTED, fence}
