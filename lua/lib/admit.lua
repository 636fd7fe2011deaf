-- admit: grants leases to waiters, in the order of the queue. What may be granted, to whom and when is the policy's to say.
-- include: lib/metadata
-- include: lib/fence
-- include: lib/token
-- include: lib/queue
-- include: lib/lapses_of
-- include: lib/message
-- include: lib/reachable
-- include: policy/KIND/admit

-- deliver sends the messages, one for each keeper, and says whether all were received. The grants are written before.
-- A keeper without a subscription is dead or cut off: its grants are undone. If the server does not allow publishing, the
-- waiters learn of their grants by their next heartbeats.
local function deliver(messages)
  local all = true
  for keeper, message in pairs(messages) do
    if send(keeper, message[2] and table.concat(message, ' ') or message[1]) == 0 then
      all, unreachable[keeper] = false, true
      for _, token in ipairs(message.tokens) do undo_grant(token) end
    end
  end
  return all
end

-- admit_waiters grants everything that the policy allows now and sends the messages. It removes waiters whose heartbeats
-- have lapsed, and those without a subscription that have not said so; a live one rejoins later. One that has become
-- ineligible is told to retry, and is then answered why. A waiter that is not a caller gets an unconfirmed lease that ends
-- with its heartbeat, so that all frozen waiters together delay the queue by at most one heartbeat timeout.
-- It returns 1 if there may be more to admit, else 0.
local function admit_waiters()
  local budget, last, messages = 1000, '0', {}
  while budget > 0 do
    local heads = next_in_line(last)
    local blocked = not heads or #heads == 0
    if not blocked then
      local lapse = lapses_of(heads)
      local out = {}
      for i, token in ipairs(heads) do
        local keeper, serial, ttl, claim_ttl, flags, number = string.match(token, TOKEN, -199)
        local caller, silent = callers[token], flags and string.find(flags, 's', 1, true)
        if lapse[i] >= DEAF then lapse[i], silent = lapse[i] - DEAF, true end
        if not keeper or not caller and (unreachable[keeper] and not silent or lapse[i] <= now) then
          out[#out + 1], head_stale, lapsed[#lapsed + 1] = token, true, token
        elseif token ~= try_token and ineligible(token) then
          out[#out + 1], head_stale, rejected[token] = token, true, ineligible(token)
          if not caller then send(keeper, serial .. ' -1') end
        elseif fits(flags, number) then
          out[#out + 1] = token
          local ms = tonumber(claim_ttl)
          if not caller then
            ms = math.min(ms, lapse[i] - now)
          elseif caller ~= true then
            ms = tonumber(caller)
          end
          head_stale = head_stale or ttl == claim_ttl or ms < claim_ttl / 2
          local fence = write_grant(token, ms, flags, number)
          if caller then
            granted[token] = {fence, now + ms}
          elseif not silent then
            local pair = grant_message(serial, fence)
            local message = messages[keeper]
            if message then
              local n = #message + 1
              message[n], message.tokens[n] = pair, token
            else
              messages[keeper] = {pair, tokens = {token}}
            end
          end
        elseif caller or not WAITERS_DIFFER or silent or reachable(keeper, flags) then
          blocked = true
          break
        else
          out[#out + 1], head_stale, unreachable[keeper] = token, true, true
        end
      end
      if write_grants then write_grants() end
      dequeue(out)
      budget = budget - #heads
    end
    -- Grants that no subscriber received are undone, and others may have them.
    if blocked then
      if deliver(messages) then return 0 end
      messages, last = {}, '49'
    end
  end
  deliver(messages)
  return 1
end

-- notify_head tells the first waiter when to retry if capacity frees up by itself before its next heartbeat, which is due
-- when half of the present one's time has passed at the latest. A caller reads this in the reply. A head without a
-- subscription is removed, up to a hundred of them.
local function notify_head()
  for _ = 1, 100 do
    local head = call('ZRANGE', queue, '0', '0')[1]
    if not head or callers[head] then return end
    local keeper, serial, _, claim_ttl, flags = string.match(head, TOKEN, -199)
    if not keeper or string.find(flags, 's', 1, true) then return end
    local ms = frees_in()
    if ms == 0 then return end
    local lapse = lapses_of({head})[1]
    if lapse >= DEAF or now + ms >= lapse - claim_ttl / 2 then return end
    if send(keeper, string.format('%s -%.0f', serial, ms)) > 0 then return end
    dequeue({head})
  end
end

-- notify_lapsed tells waiters whose heartbeats have lapsed to retry, up to ten keepers. Most of them are dead or frozen. But
-- after the server's clock was set ahead they are alive, and would otherwise retry at their next heartbeats only, while
-- the lock is free. Those further back retry a little later, so that the first comes first.
local function notify_lapsed()
  local notified, n = {}, 0
  for _, token in ipairs(lapsed) do
    local keeper, serial = string.match(token, TOKEN, -199)
    if keeper and not notified[keeper] and not unreachable[keeper] and n < 10 then
      notified[keeper] = true
      send(keeper, string.format('%s -%.0f', serial, 10 * n + 1))
      n = n + 1
    end
  end
  lapsed = {}
end

-- admit grants leases to waiters and notifies those that have to retry. It returns what admit_waiters does.
local function admit()
  local more = admit_waiters()
  if head_stale then notify_head() end
  if #lapsed > 0 then notify_lapsed() end
  return unswept and 1 or more
end
