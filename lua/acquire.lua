-- acquire: take the lock if it may be had now; else stand in line, or be refused.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: small facts, the sequence of numbers
-- KEYS[3] queue    zset: token -> place
-- KEYS[4] heartbeats    zset: token -> ms at which its heartbeat lapses
-- ARGV[1] token    of this acquisition
-- ARGV[2] ttl      ms, of the lease
-- ARGV[3] idle     ms that the meta hash is kept for
-- ARGV[4] heartbeat_ttl     ms that a heartbeat counts; 0: a try, which never stands in line
-- ARGV[5] wake     prefix of the wake-up channels
-- ARGV[6] sharded  1: wake-ups go by sharded channels, 0: by plain ones
-- ARGV[7] extra    rwlock: token of the lease in whose place this one comes, or empty if it is one more;
--                  semaphore: the limits that the caller knows of; empty for others
-- ARGV[8] within   ms that the caller can wait at the most; one that surely has to wait longer is refused; 0: not said
-- returns {GRANTED, fence, now, until, more}
--       | {REFUSED, now, ms until it may be had or 0, more} | {TOMBSTONED} | {CONFLICT} | {ABOVE_LIMIT}
--       | {WAITING, now, seq, place, rank, ask again within ms or 0, more}
--         more is 1 if there is more to be admitted, plus 2 if the limits are others from now on
-- writes KEYS[1..4]; work O(log n)
local token, ttl, idle, heartbeat_ttl = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local wake, sharded, within = ARGV[5], ARGV[6], tonumber(ARGV[8])
extra = ARGV[7]
-- include: metadata
-- Buried: the token was given up while a copy of its request was still under way. It may not be granted any more.
-- Graves lie among the heartbeats, with a mark in front, and are swept with them.
-- Where a request is refused, nothing is taken out of line. That changes nothing, but it is a write: so a server that cannot
-- be written to, as a replica, says so, and does not speak of a lock that is held.
if tombstones > now and call('ZSCORE', heartbeats, '-' .. token) then
  call('ZREM', queue, '')
  return {TOMBSTONED}
end
-- include: policy.take
if refusal then
  call('ZREM', queue, '')
  return refusal
end
-- ReplicaAck asks again for what is held already, because WAIT counts only what its own connection has written: so this
-- writes, if only what was there.
if fence and not opened then
  save_metadata(idle)
  return {GRANTED, fence, now, now + ttl, 0}
end
-- include: queue
if fence then
  -- What has come in the place of another lease may end sooner than that.
  changed = true
  local more = admit()
  save_metadata(idle)
  return {GRANTED, fence, now, now + ttl, more + limits_changed}
end
if heartbeat_ttl == 0 and not next_in_line(1) then
  -- Where nobody waits, nobody's heartbeat does this.
  maintain()
  call('ZREM', queue, '')
  return {REFUSED, now, ends(token), (unswept and 1 or 0) + limits_changed}
end

trying = heartbeat_ttl == 0 and token
local at = call('ZSCORE', queue, token) or enqueue(token)
if heartbeat_ttl > 0 then call('ZADD', heartbeats, now + heartbeat_ttl, token) end
asking[token] = ttl
local more = admit() + limits_changed
local grant = granted[token]
local left = not grant and (heartbeat_ttl == 0 or within > 0) and ends(token)
local stays = heartbeat_ttl > 0 and not grant and not rejected[token] and not (within > 0 and left > within)
if stays then
  extend_expiry(queue, heartbeat_ttl + 1000)
  extend_expiry(heartbeats, heartbeat_ttl + 1000)
elseif not grant then
  dequeue({token})
  -- It may have been the first in line, if it asked before.
  if heartbeat_ttl > 0 then
    asking[token], changed = nil, true
    more = admit() + limits_changed
  end
end
save_metadata(idle, true)
if grant then return {GRANTED, grant[1], now, grant[2], more} end
if rejected[token] then return {rejected[token]} end
if not stays then return {REFUSED, now, left, more} end
local rank = call('ZRANK', queue, token)
return {WAITING, now, seq, tonumber(at), rank, retry_in(rank), more}
