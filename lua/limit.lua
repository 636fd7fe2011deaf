-- limit: reads and changes the limits of a semaphore, pauses it, and says how many permits are taken. No other policy has it.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: the waiters and their heartbeats
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused
-- ARGV[1] metadata_ttl  ms for which metadata is kept, see lib/metadata
-- ARGV[2] policy_arg  the limits as the caller knows them, in case none are stored
-- ARGV[3] limit    the new limit: of the window, if the caller has one, else of permits held at once; 0: no change
-- ARGV[4] token    of this call, so that a late copy of it can be refused; empty if there is no change
-- ARGV[5] pause    ms for which no permits are granted that return by the clock; a pause that lasts longer stays. 0: no change;
--                  less than 0: a pause ends
-- returns {GRANTED, permits held, most at once or 0, permits taken in the window, most in a window or 0, notes, ms of the pause}
--         notes is the sum of NOTE_MORE if there is more to sweep or to admit, and NOTE_LIMITS if the limits are others from now on
--       | {TOMBSTONED}
-- writes KEYS[1..4]; work O(log n)
-- include: lib/prelude
-- include: lib/constants
-- include: lib/metadata
-- include: lib/queue
-- include: lib/message
-- include: lib/admit
-- include: policy/KIND
local metadata_ttl, policy_arg, limit, token, pause = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local run = load_metadata(metadata_ttl, policy_arg)
if is_tombstoned(run, token) then
  call('ZREM', queue, '') -- it changes nothing, but fails on a read-only server
  return {TOMBSTONED}
end

local function finite(n)
  return n < math.huge and n or 0
end

read_counts(run, 'used')
local known = load_limits(run)
if limit > 0 then
  local at_once, window = run.at_once, run.window
  if string.match(policy_arg, '^%d+:0:') then run.at_once = limit else run.window = limit end
  if run.window < math.huge and run.per == 0 then run.per = tonumber(string.match(policy_arg, '%d+$')) end
  if run.at_once ~= at_once or run.window ~= window then run.limits_changed, run.head_stale = NOTE_LIMITS, true end
end
if pause > 0 then
  -- It counts from now, which is rounded down to ms, so it is a ms longer if it begins within one.
  run.pause_left = math.max(run.pause_left, now_us % 1000 > 0 and pause + 1 or pause)
elseif pause < 0 then
  run.head_stale, run.pause_left = run.head_stale or run.pause_left > 0, 0
end
if limit > 0 or pause ~= 0 then
  save_limits(run, known or policy_arg, string.format('%.0f:%.0f:%.0f', finite(run.at_once), finite(run.window), run.per))
  keep_lock(run, keep_window(run))
end
has_room(run, math.huge, true, true)
local more = admit(run)
if pause > 0 then
  save_metadata(run, run.metadata_ttl + run.pause_left, false, run.pause_left + run.metadata_ttl / 2)
elseif limit > 0 or pause < 0 or run.seq > run.saved_seq then
  save_metadata(run, run.metadata_ttl)
end
return {GRANTED, run.used, finite(run.at_once), run.spent, finite(run.window), more + run.limits_changed, run.pause_left}
