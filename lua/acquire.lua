-- acquire: grants the lock at once if possible; else queues the request, or refuses it.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: token -> place
-- KEYS[4] heartbeats    zset: token -> ms at which its heartbeat lapses
-- ARGV[1] token    of this request
-- ARGV[2] ttl      ms of the lease
-- ARGV[3] metadata_ttl     ms for which the metadata is kept
-- ARGV[4] heartbeat_ttl     ms for which a heartbeat counts; 0: a try, which never waits
-- ARGV[5] channel_prefix    of the keepers' channels
-- ARGV[6] sharded  1: messages go by sharded channels, 0: by plain ones
-- ARGV[7] policy_arg  rwlock: token of the lease that this one replaces, or empty; semaphore: the limits as the caller knows
--                  them; empty for others
-- ARGV[8] max_wait     ms that the caller can wait at most; a request that is certain to wait longer is refused; 0: unknown
-- returns {GRANTED, fence, now, until, more}
--       | {REFUSED, now, ms until it may be granted or 0, more} | {TOMBSTONED} | {CONFLICT} | {ABOVE_LIMIT}
--       | {WAITING, now, seq, place, rank, ms after which to retry or 0, more}
--         more is 1 if there is more to admit, plus 2 if the limits are others from now on
-- writes KEYS[1..4]; work O(log n)
-- Every path writes, if only what is there already: a script fails on a read-only server, which must not say that the lock
-- is held. And ReplicaAck repeats a request for a lease that it holds, because WAIT counts only what its own connection
-- has written.
local token, ttl, metadata_ttl, heartbeat_ttl = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
policy_arg = ARGV[7]
-- include: lib/metadata
-- include: lib/tombstone
-- include: policy/KIND/newcomer
-- include: lib/save_metadata
if fence then
  save_metadata(metadata_ttl)
  return {GRANTED, fence, now, now + ttl, 0}
end
-- include: policy/KIND/existing
if refusal then
  call('ZREM', queue, '')
  return refusal
end
if fence and not freed then
  save_metadata(metadata_ttl)
  return {GRANTED, fence, now, now + ttl, 0}
end
local channel_prefix, sharded, max_wait = ARGV[5], ARGV[6], tonumber(ARGV[8])
-- include: lib/admit
if fence then
  -- A lease that replaces another may end sooner than that.
  head_stale = true
  local more = admit()
  save_metadata(metadata_ttl)
  return {GRANTED, fence, now, now + ttl, more + limits_changed}
end
if heartbeat_ttl == 0 and not next_in_line(1) then
  -- A heartbeat calls maintain, but without waiters there is none.
  -- include: policy/KIND/maintain
  maintain()
  call('ZREM', queue, '')
  return {REFUSED, now, frees_in(token), (unswept and 1 or 0) + limits_changed}
end
-- include: lib/enqueue
-- include: lib/extend_expiry

-- A try enters the queue as well, for the time of this script, so that it does not pass anybody.
try_token = heartbeat_ttl == 0 and token
local at = call('ZSCORE', queue, token) or enqueue(token)
if heartbeat_ttl > 0 then call('ZADD', heartbeats, now + heartbeat_ttl, token) end
callers[token] = ttl
local more = admit() + limits_changed
local grant = granted[token]
local retry_after = not grant and (heartbeat_ttl == 0 or max_wait > 0) and frees_in(token)
local waits = heartbeat_ttl > 0 and not grant and not rejected[token] and not (max_wait > 0 and retry_after > max_wait)
if waits then
  extend_expiry(queue, heartbeat_ttl + 1000)
  extend_expiry(heartbeats, heartbeat_ttl + 1000)
elseif not grant then
  dequeue({token})
  -- It may have been the first waiter, if it had asked before.
  if heartbeat_ttl > 0 then
    callers[token], head_stale = nil, true
    more = admit() + limits_changed
  end
end
save_metadata(metadata_ttl, true)
if grant then return {GRANTED, grant[1], now, grant[2], more} end
if rejected[token] then return {rejected[token]} end
if not waits then return {REFUSED, now, retry_after, more} end
local rank = call('ZRANK', queue, token)
return {WAITING, now, seq, tonumber(at), rank, rank < RANKS_WITH_TIMER and frees_in() or 0, more}
