-- acquire: grants the lock at once if possible; else queues the request, or refuses it.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: token -> place; heartbeats, see lib/heartbeats; none for the short form of a mutex
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused; none for the short form
-- ARGV[1] token    of this request
-- ARGV[2] ttl      ms of the lease
-- ARGV[3] policy_arg  rwlock, mutex: 'retain' for a lease that the process retains; rwlock: token of the lease that this one replaces;
--                  semaphore: the limits as the caller knows them; redlock: the least fence that the token names; else empty or none
-- ARGV[4] settings     see lib/settings; none for the short form if metadata is kept for an hour or more
-- ARGV[5] queue_ttl    ms for which the queue is kept with this request in it: a second more than a heartbeat counts; none for a try
-- ARGV[6] max_wait     ms that the caller can wait at most; a request that is certain to wait longer is refused; 0: unknown;
--                  none: a try, which never waits
-- returns a number: the fence: it was granted, and there is nothing else to say
--                 | 0: nothing was done; the long form is needed
--                 | less than 0: it was refused, and may be granted after as many ms
--                 | now, in µs: a redlock was granted with the least fence that it names; {fence, now} if its fence is larger
--       | {GRANTED, fence, now, until, more}
--       | {REFUSED, now or 0, ms until it may be granted or 0, more} | {TOMBSTONED} | {CONFLICT} | {ABOVE_LIMIT}
--       | {WAITING, now, seq, place, rank, ms after which to retry or 0, more}
--         more is 1 if there is more to admit, plus 2 if the limits are others from now on
-- writes KEYS[1..4]; work O(log n)
-- A call without KEYS[4] is the short form: the policy's newcomer, which decides the common cases by a few commands, before
-- anything of queues, tombstones and expiries is read or even defined. It has only the keys and arguments that it needs, since
-- each costs the server a quarter of what a read costs.
-- Every path that decides writes, if only what is there already: a script fails on a read-only server, which must not say that
-- the lock is held. The exception is a try that finds no permit of a window; see allow. With ReplicaAck the holder repeats its
-- request on the connection that sends WAIT, since WAIT counts only what that connection has written.
local token, ttl, settings = ARGV[1], ARGV[2], ARGV[4]
local queue_ttl, max_wait
policy_arg = ARGV[3]
if settings then queue_ttl, max_wait = ARGV[5], ARGV[6] end
-- include: lib/epoch
-- include: policy/KIND/newcomer
if not tombstones then return 0 end

-- include: lib/settings
-- include: lib/metadata
-- include: lib/tombstone
-- The metadata of a lease that lasts for long is kept for long, whatever others need.
local min_left = ttl * 5 > metadata_ttl and metadata_ttl * 3 / 4 or nil
-- include: policy/KIND/existing
-- include: lib/save_metadata
if refusal then
  call('ZREM', queue, '')
  return refusal
end
if fence and not freed then
  save_metadata(metadata_ttl, false, min_left)
  return {GRANTED, fence, now, now + ttl, 0}
end
-- include: lib/enqueue
-- include: lib/extend_expiry
-- include: lib/retries
-- include: policy/KIND/frees_in

local at, is_last
local more = 0
if blocked and max_wait == '0' then
  at, is_last = enqueue(token, now + queue_ttl - 1000)
else
  -- include: lib/admit
  if fence then
    -- A lease that replaces another may end sooner than that.
    head_stale = true
    more = admit()
    save_metadata(metadata_ttl, false, min_left)
    return {GRANTED, fence, now, now + ttl, more + limits_changed}
  end
  if not max_wait and not next_in_line(1) then
    -- A heartbeat calls maintain, but without waiters there is none.
    -- include: policy/KIND/maintain
    maintain()
    call('ZREM', queue, '')
    return {REFUSED, now, frees_in(token), (unswept and 1 or 0) + limits_changed}
  end

  -- A try enters the queue as well, for the time of this script, so that it does not pass anybody.
  try_token = not max_wait and token
  at, is_last = enqueue(token, max_wait and now + queue_ttl - 1000)
  callers[token] = ttl
  more = admit() + limits_changed
  local grant = granted[token]
  local bound = tonumber(max_wait or 0)
  local retry_after = not grant and (not max_wait or bound > 0) and frees_in(token)
  local waits = max_wait and not grant and not rejected[token] and not (bound > 0 and retry_after > bound)
  if not waits then
    if not grant then
      dequeue({token})
      -- It may have been the first waiter, if it had asked before.
      if max_wait then
        callers[token], head_stale = nil, true
        more = admit() + limits_changed
      end
    end
    save_metadata(metadata_ttl, true, min_left)
    if grant then return {GRANTED, grant[1], now, grant[2], more} end
    if rejected[token] then return {rejected[token]} end
    return {REFUSED, now, retry_after, more}
  end
end
-- It waits. The queue is kept for as long as this heartbeat counts.
local rank = is_last and call('ZCARD', queue) / 2 - 1 or call('ZRANK', queue, token)
extend_expiry(queue, queue_ttl, rank == 0)
save_metadata(metadata_ttl, true, min_left)
return {WAITING, now, seq, at, rank, rank < RETRIES and frees_in() or 0, more}
