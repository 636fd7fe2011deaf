-- admit: grants leases to waiters, in the order of the queue. What may be granted, to whom and when is the policy's to say.
-- include: lib/metadata
-- include: lib/queue
-- include: lib/message
-- include: policy/KIND

-- deliver sends the messages, one for each keeper, and says whether all were received. The grants are written before.
-- A keeper without a subscription is dead or cut off: its grants are undone, so that nobody waits for it. If it is alive, it queues its
-- waiters again, at their places, and does not count on its subscription from then on. If the server does not allow publishing,
-- the waiters learn of their grants by their next heartbeats.
local function deliver(run, messages)
  local all = true
  for keeper, message in pairs(messages) do
    if not send(keeper, table.concat(message, ' ')) then
      all, run.unreachable[keeper] = false, true
      for _, token in ipairs(message.tokens) do undo_grant(run, token) end
    end
  end
  return all
end

-- admit_waiters grants everything that the policy allows now and sends the messages. It removes waiters whose heartbeats
-- have lapsed, and those without the subscription that they count on; a live one rejoins later. The grant to one that does not count
-- on its subscription stands, and is published all the same. One that has become ineligible is told to retry, and is then answered why. A waiter that is not a caller gets an unconfirmed lease that ends
-- with its heartbeat, so that all frozen waiters together delay the queue by at most one heartbeat timeout.
-- It returns 1 if there may be more to admit, else 0.
local function admit_waiters(run)
  local budget, last, messages, uncounted, more = 1000, '0', {}, {}, 1
  while budget > 0 do
    local heads = next_in_line(run, last)
    local blocked = not heads or #heads == 0
    if not blocked then
      local lapse = lapses_of(heads)
      local out = {}
      for i, token in ipairs(heads) do
        local keeper, serial, ttl, claim_ttl, flags, number = string.match(token, TOKEN, TOKEN_FROM)
        local caller, counts = run.callers[token], lapse[i] < UNSUBSCRIBED
        if not counts then lapse[i] = lapse[i] - UNSUBSCRIBED end
        if not keeper or not caller and (counts and run.unreachable[keeper] or lapse[i] <= now) then
          out[#out + 1], run.head_stale, run.lapsed[#run.lapsed + 1] = token, true, token
        elseif token ~= run.try_token and ineligible(run, token) then
          out[#out + 1], run.head_stale, run.rejected[token] = token, true, ineligible(run, token)
          if not caller then publish(keeper, serial .. ' -1') end
        elseif fits(run, flags, number) then
          out[#out + 1] = token
          local ms = tonumber(claim_ttl)
          if not caller then
            ms = math.min(ms, lapse[i] - now)
          elseif caller ~= true then
            ms = tonumber(caller)
          end
          run.head_stale = run.head_stale or ttl == claim_ttl or ms < claim_ttl / 2
          local fence = write_grant(run, token, ms, flags, number)
          if caller then
            run.granted[token] = {fence, now + ms}
          elseif counts then
            messages[keeper] = messages[keeper] or {tokens = {}}
            local message = messages[keeper]
            message[#message + 1] = serial .. ' ' .. fence_text(fence)
            message.tokens[#message] = token
          else
            uncounted[keeper] = uncounted[keeper] or {}
            table.insert(uncounted[keeper], serial .. ' ' .. fence_text(fence))
          end
        elseif caller or not WAITERS_DIFFER or not counts or subscribed(keeper) then
          blocked = true
          break
        else
          out[#out + 1], run.head_stale, run.unreachable[keeper] = token, true, true
        end
      end
      write_grants(run)
      dequeue(out)
      budget = budget - #heads
    end
    -- Grants that no subscriber received are undone, and others may have them.
    if blocked then
      if deliver(run, messages) then
        more = 0
        break
      end
      messages, last = {}, '49'
    end
  end
  if more == 1 then deliver(run, messages) end
  for keeper, message in pairs(uncounted) do publish(keeper, table.concat(message, ' ')) end
  return more
end

-- notify_head tells the first waiter when to retry if capacity frees up by itself before its next heartbeat, which is due
-- when half of the present one's time has passed at the latest. A caller reads this in the reply. A head without the
-- subscription that it counts on is removed, up to a hundred of them.
local function notify_head(run)
  for _ = 1, 100 do
    local head = call('ZRANGE', queue, '0', '0')[1]
    if not head or run.callers[head] then return end
    local keeper, serial, _, claim_ttl = string.match(head, TOKEN, TOKEN_FROM)
    if not keeper then return end
    local ms = frees_in(run)
    if ms == 0 then return end
    local lapse, text = lapses_of({head})[1], string.format('%s -%.0f', serial, ms)
    if now + ms >= lapse % UNSUBSCRIBED - claim_ttl / 2 then return end
    if lapse >= UNSUBSCRIBED then
      publish(keeper, text)
      return
    end
    if send(keeper, text) then return end
    dequeue({head})
  end
end

-- notify_lapsed tells waiters whose heartbeats have lapsed to retry, up to ten keepers. Most of them are dead or frozen. But
-- after the server's clock was set ahead they are alive, and would otherwise retry at their next heartbeats only, while
-- the lock is free. Those further back retry a little later, so that the first comes first.
local function notify_lapsed(run)
  local notified, n = {}, 0
  for _, token in ipairs(run.lapsed) do
    local keeper, serial = string.match(token, TOKEN, TOKEN_FROM)
    if keeper and not notified[keeper] and not run.unreachable[keeper] and n < 10 then
      notified[keeper] = true
      publish(keeper, string.format('%s -%.0f', serial, 10 * n + 1))
      n = n + 1
    end
  end
  run.lapsed = {}
end

-- admit grants leases to waiters and notifies those that have to retry. It returns NOTE_MORE if there is more to admit or to sweep, else 0.
local function admit(run)
  local more = admit_waiters(run)
  if run.head_stale then notify_head(run) end
  if #run.lapsed > 0 then notify_lapsed(run) end
  return (run.unswept or more > 0) and NOTE_MORE or 0
end

-- answer_try answers a request that does not wait, and that ask has not decided. It lets it compete with those that wait, without passing
-- any of them: it is in the queue for the time of this script. min_left is for save_metadata.
local function answer_try(run, token, ttl, min_left)
  if not next_in_line(run, '1') then
    -- A heartbeat calls maintain, but without waiters there is none.
    maintain(run)
    call('ZREM', queue, '') -- it changes nothing, but fails on a read-only server
    return {REFUSED, now, frees_in(run, token), (run.unswept and NOTE_MORE or 0) + run.limits_changed}
  end
  run.try_token, run.callers[token] = token, ttl
  enqueue(token, nil, true)
  local notes = admit(run) + run.limits_changed
  local lease, retry_after = run.granted[token], nil
  if not lease then
    retry_after = frees_in(run, token)
    dequeue({token})
  end
  save_metadata(run, run.metadata_ttl, true, min_left)
  if lease then return {GRANTED, lease[1], now, lease[2], notes} end
  if run.rejected[token] then return {run.rejected[token]} end
  return {REFUSED, now, retry_after, notes}
end
