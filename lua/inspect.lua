-- inspect: lists the holders or the waiters, or says who has broken what a token had.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: the waiters and their heartbeats
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused
-- ARGV[1] subject  0: holders, 1: waiters, 2: requests whose permits have not returned by the clock, 3: the break of a token
-- ARGV[2] after    the place after which they begin; ignored for holders without a token, and for a break
-- ARGV[3] count    how many to list at most; ignored for a break
-- ARGV[4] token    of a holder: which of those that have that place was listed last; empty: none was listed. Of a break: whose
-- returns {how many, how many there are, then token, fence, ms left, place, 1 if it was converted or 0 for each holder}
--       | {how many, then token, place, ms waited, ms until its heartbeat lapses for each waiter}
--       | {how many, then the notice of each break, see break}
-- writes nothing; work O(log n + count). Pages go on by place, whatever comes and goes between them: a holder that is renewed gets
-- a later one, and may be listed again
-- include: lib/prelude
-- include: lib/constants
-- include: lib/metadata
-- include: lib/queue
-- include: policy/KIND
local subject, after, count, token = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local BREAK, WAITERS, TAKEN_BY_CLOCK = '3', '1', '2'
if subject == BREAK then
  local notices = {0}
  for _, member in ipairs(notices_of(token)) do
    notices[1], notices[#notices + 1] = notices[1] + 1, string.sub(member, #token + 2)
  end
  return notices
end

local reply = {0}
local function append(...)
  reply[1] = reply[1] + 1
  for _, x in ipairs({...}) do reply[#reply + 1] = x end
end
if subject ~= WAITERS then
  local run = load_metadata()
  local list, total = holders(run, after, token, count, subject == TAKEN_BY_CLOCK)
  reply[2] = total
  for _, h in ipairs(list) do append(h[1], h[2], h[3], h[4], h[5] or 0) end
  return run.type_error or reply
end
local list = call('ZRANGE', queue, '(' .. after, BEHIND_WAITERS, 'BYSCORE', 'LIMIT', 0, count, 'WITHSCORES')
local waiters = {}
for i = 1, #list, 2 do waiters[#waiters + 1] = list[i] end
local lapses = #waiters > 0 and lapses_of(waiters)
for i = 1, #list, 2 do
  local at, lapse = tonumber(list[i + 1]), lapses[(i + 1) / 2]
  append(list[i], at, math.floor((now_us - ticket_of(at)) / 1000), lapse > 0 and lapse % UNSUBSCRIBED - now or 0)
end
return reply
