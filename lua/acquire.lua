-- acquire: take the lock if it may be had now; else stand in line, or be refused.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: small facts, the sequence of numbers
-- KEYS[3] queue    zset: token -> place
-- KEYS[4] beats    zset: token -> ms at which its heartbeat lapses
-- ARGV[1] token    of this acquisition
-- ARGV[2] ttl      ms, of the lease
-- ARGV[3] idle     ms that the meta hash is kept for
-- ARGV[4] life     ms that a heartbeat counts; 0: a try, which never stands in line
-- ARGV[5] wake     prefix of the wake-up channels
-- ARGV[6] sharded  1: wake-ups go by sharded channels, 0: by plain ones
-- ARGV[7] extra    rwlock: token of the lease in whose place this one comes, or empty if it is one more;
--                  semaphore: the limits that the caller knows of; empty for others
-- ARGV[8] within   ms that the caller can wait at the most; one that surely has to wait longer is refused; 0: not said
-- returns {GRANTED, fence, now, until, more}
--       | {REFUSED, now, ms until it may be had or 0, more} | {BURIED} | {CONFLICT} | {ABOVE}
--       | {WAITING, now, seq, place, rank, ask again within ms or 0, more}
--         more is 1 if there is more to be admitted, plus 2 if the limits are others from now on
-- writes KEYS[1..4]; work O(log n)
local token, ttl, idle, life = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local wake, sharded, within = ARGV[5], ARGV[6], tonumber(ARGV[8])
extra = ARGV[7]
-- include: facts
-- Buried: the token was given up while a copy of its request was still under way. It may not be granted any more.
-- Graves lie among the heartbeats, with a mark in front, and are swept with them.
-- Where a request is refused, nothing is taken out of line. That changes nothing, but it is a write: so a server that cannot
-- be written to, as a replica, says so, and does not speak of a lock that is held.
if graves > now and call('ZSCORE', beats, '-' .. token) then
  call('ZREM', queue, '')
  return {BURIED}
end
-- include: policy.take
if refusal then
  call('ZREM', queue, '')
  return refusal
end
-- ReplicaAck asks again for what is held already, because WAIT counts only what its own connection has written: so this
-- writes, if only what was there.
if fence and not opened then
  save_facts(idle)
  return {GRANTED, fence, now, now + ttl, 0}
end
-- include: queue
if fence then
  -- What has come in the place of another lease may end sooner than that.
  changed = true
  local more = admit()
  save_facts(idle)
  return {GRANTED, fence, now, now + ttl, more + news}
end
if life == 0 and not next_in_line(1) then
  -- Where nobody waits, nobody's heartbeat does this.
  mend()
  call('ZREM', queue, '')
  return {REFUSED, now, ends(token), (unswept and 1 or 0) + news}
end

trying = life == 0 and token
local at = call('ZSCORE', queue, token) or queue_up(token)
if life > 0 then call('ZADD', beats, now + life, token) end
asking[token] = ttl
local more = admit() + news
local grant = granted[token]
local left = not grant and (life == 0 or within > 0) and ends(token)
local stays = life > 0 and not grant and not voided[token] and not (within > 0 and left > within)
if stays then
  linger(queue, life + 1000)
  linger(beats, life + 1000)
elseif not grant then
  leave({token})
  -- It may have been the first in line, if it asked before.
  if life > 0 then
    asking[token], changed = nil, true
    more = admit() + news
  end
end
save_facts(idle, true)
if grant then return {GRANTED, grant[1], now, grant[2], more} end
if voided[token] then return {voided[token]} end
if not stays then return {REFUSED, now, left, more} end
local rank = call('ZRANK', queue, token)
return {WAITING, now, seq, tonumber(at), rank, when(rank), more}
