-- heartbeat: the heartbeats of one keeper's waiters for one name, all at once; also asks whether any of them may run now.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: small facts, the sequence of numbers
-- KEYS[3] queue    zset: token -> place
-- KEYS[4] heartbeats    zset: token -> ms at which its heartbeat lapses
-- ARGV[1] idle     ms that the meta hash is kept for
-- ARGV[2] heartbeat_ttl     ms that a heartbeat counts
-- ARGV[3] wake     prefix of the wake-up channels
-- ARGV[4] sharded  1: wake-ups go by sharded channels, 0: by plain ones
-- ARGV[5] back     1: stand in line again, a place follows each token (0: at the end); 0: only tokens follow
-- ARGV[6] extra    semaphore: the limits that the keeper knows of, for when they are lost; empty for others
-- ARGV[7..] tokens  or pairs of token and place; none: only admit
-- returns {WAITING, now, seq, ask again within ms or 0, more to admit 0|1,
--          index of the first of the tokens that wait or 0, its rank in the queue,
--          then for each token not simply waiting:
--          its index, GRANTED or HELD, fence, until | its index, WAITING, place, 0 | its index, UNKNOWN, TOMBSTONED, REFUSED, CONFLICT or ABOVE_LIMIT, 0, 0}
-- writes KEYS[1..4]; work O(log n) for each token
local idle, heartbeat_ttl = tonumber(ARGV[1]), tonumber(ARGV[2])
local wake, sharded, back = ARGV[3], ARGV[4], ARGV[5] == '1'
extra = ARGV[6]
-- include: metadata
-- include: queue
local reply = {WAITING, now, 0, 0, 0, 0, 0}
local function tell(index, code, a, b)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = index, code, a, b
end

local step = back and 2 or 1
local tokens, places = {}, {}
for i = 7, #ARGV, step do
  tokens[#tokens + 1] = ARGV[i]
  places[#tokens] = back and tonumber(ARGV[i + 1])
end

for from = 1, #tokens, 200 do
  local part = {unpack(tokens, from, math.min(from + 199, #tokens))}
  local stands = call('ZMSCORE', queue, unpack(part))
  local alive = {}
  for i, token in ipairs(part) do
    local index, at = from + i - 1, stands[i] and tonumber(stands[i])
    if not at then
      local fence, till = lease(token)
      if fence then
        tell(index, HELD, fence, till)
      elseif back and tombstones > now and call('ZSCORE', heartbeats, '-' .. token) then
        tell(index, TOMBSTONED, 0, 0)
      elseif ineligible(token) then
        tell(index, ineligible(token), 0, 0)
      elseif not back then
        tell(index, UNKNOWN, 0, 0)
      else
        at = places[index]
        if at > 0 then call('ZADD', queue, at, token) else at = enqueue(token) end
        tell(index, WAITING, at, 0)
      end
    end
    places[index] = at
    if at then
      asking[token] = true
      alive[#alive + 1] = now + heartbeat_ttl
      alive[#alive + 1] = token
    end
  end
  if #alive > 0 then call('ZADD', heartbeats, unpack(alive)) end
end
if next(asking) then
  extend_expiry(queue, heartbeat_ttl + 1000)
  extend_expiry(heartbeats, heartbeat_ttl + 1000)
end

lapsed = call('ZRANGE', heartbeats, '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)
dequeue(lapsed)
changed = changed or #lapsed > 0
maintain()
if wrong then return wrong end
reply[5] = admit()
local first
for i, token in ipairs(tokens) do
  local grant = granted[token]
  if grant then
    tell(i, GRANTED, grant[1], grant[2])
  elseif rejected[token] then
    tell(i, rejected[token], 0, 0)
  elseif places[i] and (not first or places[i] < places[first]) then
    first = i
  end
end
save_metadata(idle)
reply[3] = seq
local rank = first and call('ZRANK', queue, tokens[first])
if rank then reply[4], reply[6], reply[7] = retry_in(rank), first, rank end
return reply
