-- queue: waiting, and being granted. It stands here once; every primitive brings only its policy.
-- Wants ARGV wake (the prefix of the wake-up channels) and sharded (1 on a cluster) as locals.

-- asking: token -> true, or ms: who asks right now, and the lease it gets if that is not a claim.
-- trying: the token that stands in line for this script only, because it tries.
-- granted: token -> {fence, until}: what this script granted to those who ask.
-- voided: token -> code: who waited, and may not any more.
-- absent: keeper -> true: a message to it was heard by nobody.
-- changed: the head of the queue may not know when it should ask.
-- lapsed: who was taken out of line because its heartbeat had lapsed.
local asking, trying, granted, rejected, unreachable, changed, lapsed = {}, nil, {}, {}, {}, false, {}

-- A token says what was asked for: <keeper>:<serial>:<ttl>.<claim><flags><permits>. A foreign one does not match.
local TERMS = '^([^:]+):([^:]+):(%d+)%.(%d+)(%l*)(%d*)$'

-- ttl_of is what the holder of a token asked for at first, in ms; nil for a foreign one.
local function ttl_of(token)
  return tonumber((string.match(token, '^[^:]+:[^:]+:(%d+)%.%d+%l*%d*$')))
end

-- linger keeps a key for ms more, and never for less than it had.
local function extend_expiry(key, ms)
  if call('PEXPIRE', key, ms, 'GT') == 0 then call('PEXPIRE', key, ms, 'NX') end
end

-- listens says whether a keeper has subscribed at this server, as far as can be told.
local function subscribed(keeper)
  local count = pcall('PUBSUB', sharded == '1' and 'SHARDNUMSUB' or 'NUMSUB', wake .. keeper)
  return not count[2] or count[2] > 0
end

-- present says whether a waiter's keeper can be told, or need not be.
local function reachable(keeper, flags)
  if unreachable[keeper] then return false end
  return string.find(flags, 's', 1, true) ~= nil or subscribed(keeper)
end

-- include: policy.rest

-- enqueue gives a newcomer a ticket and a place at the end of the line, or of its part of the line; a try stands
-- behind all. Tickets rise like fences, by a count of their own.
local function enqueue(token)
  local ticket = math.max((tonumber(call('HGET', meta, 'ticket')) or 0) + 1, now_us)
  call('HSET', meta, 'ticket', ticket)
  local at = place(ticket, token, token == trying)
  call('ZADD', queue, at, token)
  return at
end

-- bury keeps a token that is being given up from being granted for ms.
local function add_tombstone(token, ms)
  call('ZADD', heartbeats, now + ms, '-' .. token)
  extend_expiry(heartbeats, ms)
  call('HSET', meta, 'tombstones', now + ms)
end

-- leave takes waiters out of the queue: tokens is a list of at most a few hundred.
local function dequeue(tokens)
  if #tokens == 0 then return end
  call('ZREM', queue, unpack(tokens))
  call('ZREM', heartbeats, unpack(tokens))
end

-- send publishes a message to a keeper and returns how many have heard it. One that cannot be sent for want of a right
-- counts as heard. Nothing is sent to a keeper that does not listen here: it may listen at a replica, where messages
-- arrive as well and are not counted, and would believe in a grant that is taken back.
local function send(keeper, text)
  if not subscribed(keeper) then return 0 end
  local heard = pcall(sharded == '1' and 'SPUBLISH' or 'PUBLISH', wake .. keeper, text)
  return type(heard) == 'table' and 1 or heard
end

-- deliver sends the letters, one to each keeper, and says whether all have come: a crashed process has no subscriber,
-- and what it was granted is taken back. The grants are written already. A waiter that is not told for want of a right
-- learns of its grant at its next heartbeat.
local function deliver(messages)
  local all = true
  for keeper, message in pairs(messages) do
    if send(keeper, message.text) == 0 then
      all, unreachable[keeper] = false, true
      for _, token in ipairs(message) do undo(token) end
    end
  end
  return all
end

-- forewarn sees to it that the head of the queue asks when room comes by itself, if that is before its next heartbeat,
-- which comes when half of the present one's life has gone at the latest. Whoever asks right now is told in the reply.
-- It passes over a hundred who do not listen, and leaves more of them to the next script.
local function notify_head()
  for _ = 1, 100 do
    local head = call('ZRANGE', queue, 0, 0)[1]
    if not head or asking[head] then return end
    local keeper, serial, _, claim, flags = string.match(head, TERMS)
    if not keeper or string.find(flags, 's', 1, true) then return end
    local left, lapse = ends(), tonumber(call('ZSCORE', heartbeats, head)) or 0
    if left == 0 or now + left >= lapse - claim / 2 then return end
    if send(keeper, string.format('%s -%.0f', serial, left)) > 0 then return end
    dequeue({head})
  end
end

-- walk grants whatever the policy allows now, in the order of the queue, and tells those who are granted something.
-- Waiters that are not there to be told, and those whose heartbeat has lapsed, are passed over and taken out; a live
-- one that lost its connection comes back to its place. What a waiter is granted that does not ask lasts as long as its
-- heartbeat and no longer, so that all who have frozen are done with when the last of their heartbeats lapses. One that
-- may not wait any more is told to ask, and is answered why. Heads is who is to be looked at first, if that is known. It
-- returns 1 if it stopped because it had walked far enough for one script.
local function admit_next(heads)
  local budget, width, messages = 1000, 1, {}
  while budget > 0 do
    heads = heads or next_in_line(width)
    local blocked = not heads or #heads == 0
    if not blocked then
      local lapse = call('ZMSCORE', heartbeats, unpack(heads))
      local out = {}
      for i, token in ipairs(heads) do
        local keeper, serial, ttl, claim, flags, permits = string.match(token, TERMS)
        local asks = asking[token]
        if not keeper or not asks and (unreachable[keeper] or not lapse[i] or tonumber(lapse[i]) <= now) then
          out[#out + 1], changed, lapsed[#lapsed + 1] = token, true, token
        elseif token ~= trying and ineligible(token) then
          out[#out + 1], changed, rejected[token] = token, true, ineligible(token)
          if not asks then send(keeper, serial .. ' -1') end
        elseif fits(flags, permits) then
          out[#out + 1] = token
          local ms = tonumber(claim)
          if not asks then
            ms = math.min(ms, tonumber(lapse[i]) - now)
          elseif asks ~= true then
            ms = tonumber(asks)
          end
          changed = changed or ttl == claim or ms < claim / 2
          local fence = give(token, ms, flags, permits)
          if asks then
            granted[token] = {fence, now + ms}
          elseif not string.find(flags, 's', 1, true) then
            local word = string.format('%s %.0f', serial, fence)
            local message = messages[keeper]
            if message then
              message.text = message.text .. ' ' .. word
              message[#message + 1] = token
            else
              messages[keeper] = {token, text = word}
            end
          end
        elseif asks or not MIXED or reachable(keeper, flags) then
          blocked = true
          break
        else
          out[#out + 1], changed, unreachable[keeper] = token, true, true
        end
      end
      dequeue(out)
      budget = budget - #heads
    end
    -- Whom a message did not reach has lost its grant again, and others may have it.
    if blocked then
      if deliver(messages) then return 0 end
      messages, width = {}, 50
    end
    heads = nil
  end
  deliver(messages)
  return 1
end

-- recall tells those who have lapsed to ask now, up to ten keepers. Mostly they are gone, and nobody hears it, or frozen. But
-- when the server's clock was set ahead they are alive and know nothing of it, and would ask at their next heartbeats only,
-- while the lock is free. Those who stood further behind are to ask a little later, so that the first comes back first.
local function notify_lapsed()
  local told, n = {}, 0
  for _, token in ipairs(lapsed) do
    local keeper, serial = string.match(token, TERMS)
    if keeper and not told[keeper] and not unreachable[keeper] and string.sub(keeper, 1, 1) ~= '-' and n < 10 then
      told[keeper] = true
      send(keeper, string.format('%s -%.0f', serial, 10 * n + 1))
      n = n + 1
    end
  end
  lapsed = {}
end

-- admit lets in whoever may be let in. Heads and the result are those of walk.
local function admit(heads)
  local more = admit_next(heads)
  if changed or limits_changed > 0 then notify_head() end
  if #lapsed > 0 then notify_lapsed() end
  return unswept and 1 or more
end

-- when is how many ms from now this waiter should ask again at the latest; 0: at its heartbeat. Only the heads of the
-- queue are told when the present lease would end, so that the rest stays quiet.
local function retry_in(rank)
  if rank and rank < 3 then return ends() end
  return 0
end
