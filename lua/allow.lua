-- allow: of the rate limit: takes permits that return by the clock, or refuses them, and says what remains of the limit after it.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: the waiters and their heartbeats
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused
-- ARGV[1] token    of this request
-- ARGV[2] ttl      ms of the lease
-- ARGV[3] policy_arg  the limits as the caller knows them
-- ARGV[4] metadata_ttl  ms for which metadata is kept, see lib/metadata
-- returns {GRANTED, fence, now, until, notes, quota} | {REFUSED, now, ms until it may be granted or 0, notes, quota}
--       | {TOMBSTONED} | {ABOVE_LIMIT}. Notes are those of acquire; the quota is three numbers:
--         the limit in force · permits that remain of it, at least · ms until all that are taken have returned
-- writes KEYS[1..4] unless it refuses; work O(log n)
-- include: lib/prelude
-- include: lib/constants
-- include: lib/metadata
-- include: lib/queue
-- include: lib/message
-- include: lib/admit
-- include: policy/KIND
local token, ttl, policy_arg, metadata_ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local run = load_metadata(metadata_ttl, policy_arg)
if is_tombstoned(run, token) then
  call('ZREM', queue, '') -- it changes nothing, but fails on a read-only server
  return {TOMBSTONED}
end

local code, fence_or_ms, frees = ask(run, token, ttl)
local reply
if code == GRANTED then
  run.head_stale = run.head_stale or frees
  local notes = frees and admit(run) + run.limits_changed or 0
  save_metadata(run, run.metadata_ttl)
  reply = {GRANTED, fence_or_ms, now, now + ttl, notes}
elseif code == REFUSED then
  reply = {REFUSED, now, fence_or_ms, 0}
elseif code then
  call('ZREM', queue, '')
  return {code}
else
  reply = answer_try(run, token, ttl)
end
if reply[1] ~= GRANTED and reply[1] ~= REFUSED then return reply end
local n = #reply
reply[n + 1], reply[n + 2], reply[n + 3] = quota(run)
return reply
