-- acquire: grants the lock at once if possible; else queues the request, or refuses it.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: the waiters and their heartbeats
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused
-- ARGV[1] token    of this request
-- ARGV[2] ttl      ms of the lease
-- ARGV[3] policy_arg  rwlock: of an upgrade, the token of its lease; semaphore: the limits as the caller knows them; else empty
-- ARGV[4] metadata_ttl  ms for which metadata is kept, see lib/metadata
-- ARGV[5] queue_ttl    ms for which the queue is kept with this request in it: QUEUE_GRACE more than a heartbeat counts; none for a try
-- ARGV[6] max_wait     ms that the caller can wait at most; a request that is certain to wait longer is refused; 0: unknown;
--                  none: a try, which never waits
-- ARGV[7] unsubscribed  1: the keeper does not count on its subscription, see UNSUBSCRIBED; none: it does
-- returns {GRANTED, fence, now, until, notes} | {REFUSED, now, ms until it may be granted or 0, notes}
--       | {WAITING, now, seq, place, rank, ms after which to retry or 0, notes} | {TOMBSTONED} | {CONFLICT} | {ABOVE_LIMIT}
--         notes is the sum of NOTE_MORE if there is more to admit, and NOTE_LIMITS if the limits are others from now on
-- writes KEYS[1..4]; work O(log n)
-- Every path that decides writes, if only what is there already: a script fails on a read-only server, which must not say that
-- the lock is held. The exception is a try that finds no permit of a window. With ReplicaAck the holder repeats its request on the
-- connection that sends WAIT, since WAIT counts only what that connection has written.
-- include: lib/prelude
-- include: lib/constants
-- include: lib/metadata
-- include: lib/queue
-- include: lib/message
-- include: lib/admit
-- include: policy/KIND
local token, ttl, policy_arg, metadata_ttl, queue_ttl, max_wait, unsubscribed = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local lapse = max_wait and now + queue_ttl - QUEUE_GRACE + (unsubscribed and UNSUBSCRIBED or 0)
local run = load_metadata(metadata_ttl, policy_arg)
-- The metadata of a lease that lasts for long is kept for long, whatever others need.
local min_left = ttl * 5 > run.metadata_ttl and run.metadata_ttl * 3 / 4 or nil

if is_tombstoned(run, token) then
  call('ZREM', queue, '') -- it changes nothing, but fails on a read-only server
  return {TOMBSTONED}
end

-- Most requests that wait find that nobody can be granted anything now.
local freed_in = max_wait == '0' and blocked_for(run, token, policy_arg)
if freed_in then
  local at, is_last = enqueue(token, lapse)
  local rank = is_last and call('ZCARD', queue) / 2 - 1 or call('ZRANK', queue, token)
  extend_expiry(queue, queue_ttl, rank == 0)
  save_metadata(run, run.metadata_ttl, true, min_left)
  return {WAITING, now, run.seq, at, rank, rank < RETRIES and freed_in or 0, 0}
end

local code, fence_or_ms, frees = ask(run, token, ttl, policy_arg, max_wait)
if run.type_error then return run.type_error end
if code == GRANTED and not frees then
  save_metadata(run, run.metadata_ttl, false, min_left)
  return {GRANTED, fence_or_ms, now, now + ttl, 0}
end
if code == REFUSED and fence_or_ms then return {REFUSED, now, fence_or_ms, 0} end
if code and code ~= GRANTED then
  call('ZREM', queue, '')
  if code == REFUSED then return {REFUSED, now, 0, 0} end
  return {code}
end

if code == GRANTED then
  local more = admit(run)
  save_metadata(run, run.metadata_ttl, false, min_left)
  return {GRANTED, fence_or_ms, now, now + ttl, more + run.limits_changed}
end
if not max_wait then return answer_try(run, token, ttl, min_left) end

local at, is_last = enqueue(token, lapse)
run.callers[token] = ttl
local notes = admit(run) + run.limits_changed
local lease, rejected, bound = run.granted[token], run.rejected[token], tonumber(max_wait)
local retry_after = not lease and bound > 0 and frees_in(run, token) or 0
if not lease and (rejected or retry_after > bound) then
  dequeue({token})
  -- It may have been the first waiter, if it had asked before.
  run.callers[token], run.head_stale = nil, true
  notes = admit(run) + run.limits_changed
  save_metadata(run, run.metadata_ttl, true, min_left)
  return rejected and {rejected} or {REFUSED, now, retry_after, notes}
end
if lease then
  save_metadata(run, run.metadata_ttl, true, min_left)
  return {GRANTED, lease[1], now, lease[2], notes}
end
-- It waits. The queue is kept for as long as this heartbeat counts.
local rank = is_last and call('ZCARD', queue) / 2 - 1 or call('ZRANK', queue, token)
extend_expiry(queue, queue_ttl, rank == 0)
save_metadata(run, run.metadata_ttl, true, min_left)
return {WAITING, now, run.seq, at, rank, rank < RETRIES and frees_in(run) or 0, notes}
