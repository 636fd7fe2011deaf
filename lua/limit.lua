-- limit: reads and changes the limits of a semaphore, pauses it, and says how many permits are taken. No other policy has it.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: token -> place; heartbeats, see lib/heartbeats
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused
-- ARGV[1] settings     see lib/settings
-- ARGV[2] policy_arg  the limits as the caller knows them, in case none are stored
-- ARGV[3] limit    the new limit: of the window, if the caller has one, else of permits held at once; 0: no change
-- ARGV[4] token    of this call, so that a late copy of it can be refused; empty if there is no change
-- ARGV[5] pause    ms for which no permits are granted that return by the clock; a pause that lasts longer stays. 0: no change;
--                  less than 0: a pause ends
-- returns {GRANTED, permits held, most at once or 0, permits taken in the window, most in a window or 0, more, ms of the pause}
--         more is 1 if there is more to sweep or to admit, plus 2 if the limits are others from now on
--       | {TOMBSTONED}
-- writes KEYS[1..4]; work O(log n)
local settings, limit, token, pause = ARGV[1], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
policy_arg = ARGV[2]
-- include: lib/settings
-- include: lib/metadata
-- include: lib/tombstone
-- include: lib/save_metadata
-- include: lib/admit
-- include: policy/semaphore/set_limit
local more = admit()
if pause > 0 then
  save_metadata(metadata_ttl + pause_left, false, pause_left + metadata_ttl / 2)
elseif limit > 0 or pause < 0 or seq > saved_seq then
  save_metadata(metadata_ttl)
end
local function finite(n)
  return n < math.huge and n or 0
end
return {GRANTED, used, finite(at_once), spent, finite(window), more + limits_changed, pause_left}
