-- limit: what a semaphore is held to, and how much of that is taken; it can change the limit. No other primitive has it.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: small facts, the sequence of numbers
-- KEYS[3] queue    zset: token -> place
-- KEYS[4] heartbeats    zset: token -> ms at which its heartbeat lapses
-- ARGV[1] idle     ms that the meta hash is kept for
-- ARGV[2] wake     prefix of the wake-up channels
-- ARGV[3] sharded  1: wake-ups go by sharded channels, 0: by plain ones
-- ARGV[4] extra    the limits that the caller knows of, for when there are none
-- ARGV[5] limit    the limit from now on: of the window, if the caller knows of one, else at once; 0: leave it
-- ARGV[6] token    of this call, so that a copy of it that comes late can be refused
-- returns {GRANTED, permits held, most at once or 0, permits that are to return, most in a window or 0, more}
--         more is 1 if there is more to be swept or admitted, plus 2 if the limits are others from now on
--       | {TOMBSTONED}
-- writes KEYS[1..4]; work O(log n)
local idle, limit = tonumber(ARGV[1]), tonumber(ARGV[5])
local wake, sharded = ARGV[2], ARGV[3]
extra = ARGV[4]
-- include: metadata
if limit > 0 and tombstones > now and call('ZSCORE', heartbeats, '-' .. ARGV[6]) then
  -- As acquire does.
  call('ZREM', queue, '')
  return {TOMBSTONED}
end
-- include: queue
-- include: policy.limit
local more = admit()
if limit > 0 or seq > saved then save_metadata(idle) end
local function most(n)
  return n < math.huge and n or 0
end
return {GRANTED, used, most(at_once), spent, most(window), more + limits_changed}
