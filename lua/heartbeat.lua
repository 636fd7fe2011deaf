-- heartbeat: the heartbeats of all waiters of one keeper for one name. It also admits waiters and removes lapsed ones.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: the waiters and their heartbeats
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused
-- ARGV[1] metadata_ttl  ms for which metadata is kept, see lib/metadata
-- ARGV[2] mode     the sum of HEARTBEAT_REJOIN: queue the tokens again; a place follows each of them (0: the end), else only tokens follow;
--                  HEARTBEAT_UNSUBSCRIBED: the keeper does not count on its subscription
-- ARGV[3] policy_arg  semaphore: the limits as the keeper knows them, in case they are lost; empty for others
-- ARGV[4] queue_ttl    ms for which the queue is kept with these waiters: QUEUE_GRACE more than their heartbeats count
-- ARGV[5..] tokens  in the order of their places, or pairs of token and place; none: only admit
-- returns {WAITING, now, seq, ms after which to retry or 0, 1 if there is more to admit or 0,
--          index of the first waiter among the tokens or 0, its rank in the queue,
--          then for each token that does not simply wait:
--          its index, GRANTED or HELD, fence, until | its index, WAITING, place, 0
--          | its index, UNKNOWN, TOMBSTONED, REFUSED, CONFLICT or ABOVE_LIMIT, 0, 0}
-- writes KEYS[1..4]; work O(log n) for each token
-- include: lib/prelude
-- include: lib/constants
-- include: lib/metadata
-- include: lib/queue
-- include: lib/message
-- include: lib/admit
-- include: policy/KIND
local metadata_ttl, mode, policy_arg, queue_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local rejoin, unsubscribed = mode % HEARTBEAT_UNSUBSCRIBED == HEARTBEAT_REJOIN, mode >= HEARTBEAT_UNSUBSCRIBED
local run = load_metadata(metadata_ttl, policy_arg)
local reply = {WAITING, now, 0, 0, 0, 0, 0}
local function report(index, code, a, b)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = index, code, a, b
end

-- absent reports on a token that is not in the queue. It returns its place if it is queued again.
local function absent(index, token, at)
  local fence, lease_end = lease_of(run, token)
  local rejected = not fence and ineligible(run, token)
  if fence then
    report(index, HELD, fence, lease_end)
  elseif rejoin and is_tombstoned(run, token) then
    report(index, TOMBSTONED, 0, 0)
  elseif rejected then
    report(index, rejected, 0, 0)
  elseif not rejoin then
    report(index, UNKNOWN, 0, 0)
  else
    if at > 0 then requeue(token, at) else at = enqueue(token) end
    report(index, WAITING, at, 0)
    return at
  end
end

-- places has the place of each token that waits. Where all waited already it has their order instead, which is enough to find the first.
local step = rejoin and 2 or 1
local tokens, places, total = {}, {}, 0
for i = 5, #ARGV, step do
  total = total + 1
  tokens[total], places[total] = ARGV[i], rejoin and tonumber(ARGV[i + 1]) or total
end

-- Mostly all tokens wait, and one command for each batch says so: it changes as many heartbeats, and adds none. It does not count one that
-- is written a second time within the same ms. A string costs less than a number, which the server formats for each heartbeat.
local lapse = string.format('%.0f', HEARTBEATS + now + queue_ttl - QUEUE_GRACE + (unsubscribed and UNSUBSCRIBED or 0))
local prolonged = 0
for from = 1, rejoin and 0 or total, 200 do
  local alive, n = {}, 0
  for i = from, math.min(from + 199, total) do
    alive[n + 1], alive[n + 2] = lapse, '+' .. tokens[i]
    n = n + 2
  end
  prolonged = prolonged + call('ZADD', queue, 'XX', 'CH', unpack(alive))
end

for from = 1, prolonged < total and total or 0, 200 do
  local batch = {unpack(tokens, from, math.min(from + 199, total))}
  local scores = call('ZMSCORE', queue, unpack(batch))
  local alive = {}
  for i, token in ipairs(batch) do
    local index = from + i - 1
    local at = tonumber(scores[i] or nil) or absent(index, token, places[index])
    places[index] = at
    if at then
      alive[#alive + 1] = lapse
      alive[#alive + 1] = '+' .. token
    end
  end
  if #alive > 0 then call('ZADD', queue, unpack(alive)) end
end
local callers = run.callers
for i = 1, total do callers[tokens[i]] = places[i] and true end
if next(run.callers) then extend_expiry(queue, queue_ttl) end

run.lapsed = call('ZRANGE', queue, BEHIND_WAITERS, HEARTBEATS + now, 'BYSCORE', 'LIMIT', '0', '100')
for i, member in ipairs(run.lapsed) do run.lapsed[i] = string.sub(member, 2) end
dequeue(run.lapsed)
run.head_stale = run.head_stale or #run.lapsed > 0
maintain(run)
if run.type_error then return run.type_error end
reply[5] = admit(run)
local granted, rejected, first = run.granted, run.rejected, nil
for i = 1, total do
  local token = tokens[i]
  local grant = granted[token]
  if grant then
    report(i, GRANTED, grant[1], grant[2])
  elseif rejected[token] then
    report(i, rejected[token], 0, 0)
  elseif places[i] and (not first or places[i] < places[first]) then
    first = i
  end
end
save_metadata(run, run.metadata_ttl)
reply[3] = run.seq
local rank = first and call('ZRANK', queue, tokens[first])
if rank then reply[4], reply[6], reply[7] = rank < RETRIES and frees_in(run) or 0, first, rank end
return reply
