-- queue: waiting, and being granted. It stands here once; every primitive brings only its policy.
-- Wants ARGV wake (the prefix of the wake-up channels) and sharded (1 on a cluster) as locals.

-- asking: token -> true, or ms: who asks right now, and the lease it gets if that is not a claim.
-- granted: token -> {fence, until}: what this script granted to those who ask.
-- letters: keeper -> the wake-up it is to be sent, as a list of words.
-- present: keeper -> is it listening?
local asking, granted, letters, present = {}, {}, {}, {}

-- whole writes a number out in full: tostring cuts what is longer than 14 digits.
local function whole(n)
  return string.format('%.0f', n)
end

-- listening: will a message reach this keeper? A crashed process has no subscriber. A waiter flagged s has no right
-- to subscribe and learns of its grant at its next heartbeat; so do all, where scripts may not look (err).
local function listening(keeper, flags)
  if string.find(flags, 's', 1, true) then return true end
  if present[keeper] == nil then
    local n = pcall('PUBSUB', sharded == 1 and 'SHARDNUMSUB' or 'NUMSUB', wake .. keeper)
    present[keeper] = n.err ~= nil or tonumber(n[2]) > 0
  end
  return present[keeper]
end

-- write adds a grant to the letter for its keeper.
local function write(keeper, serial, fence, till)
  local letter = letters[keeper]
  if not letter then
    letter = {whole(now)}
    letters[keeper] = letter
  end
  letter[#letter + 1] = serial
  letter[#letter + 1] = whole(fence)
  letter[#letter + 1] = whole(till)
end

-- leave takes waiters out of the queue: tokens is a list of at most a few hundred.
local function leave(tokens)
  if #tokens == 0 then return end
  call('ZREM', queue, unpack(tokens))
  call('ZREM', beats, unpack(tokens))
end

-- admit grants whatever the policy allows now, in the order of the queue. Waiters that are not there to be told, and
-- those whose heartbeat has lapsed, are passed over and taken out; a live one that lost its connection comes back to
-- its place with its ticket. It returns 1 if it stopped because it had walked far enough for one script.
local function admit()
  local budget, width = 1000, 1
  while budget > 0 do
    local low, high, most = turn()
    if not low then return 0 end
    local heads = call('ZRANGE', queue, low, high, 'BYSCORE', 'LIMIT', 0, math.max(most, width))
    if #heads == 0 then return 0 end
    local lapse = call('ZMSCORE', beats, unpack(heads))
    local out, blocked = {}, false
    for i, token in ipairs(heads) do
      local keeper, serial, _, claim, flags, permits = terms(token)
      local asks = asking[token]
      if not keeper or not (asks or tonumber(lapse[i] or 0) > now and listening(keeper, flags)) then
        out[#out + 1] = token
        width = 50
      elseif fits(flags, tonumber(permits)) then
        out[#out + 1] = token
        local ms = tonumber(asks) or tonumber(claim)
        local fence = give(token, ms)
        if asks then
          granted[token] = {fence, now + ms}
        else
          write(keeper, serial, fence, now + ms)
        end
      else
        blocked = true
        break
      end
    end
    leave(out)
    if blocked then return 0 end
    budget = budget - #heads
  end
  return 1
end

-- deliver sends the letters, last of all: a missing right to publish must not break what was written before.
local function deliver()
  for keeper, letter in pairs(letters) do
    pcall(sharded == 1 and 'SPUBLISH' or 'PUBLISH', wake .. keeper, table.concat(letter, ' '))
  end
end

-- when is how many ms from now this waiter should ask again at the latest; 0: at its heartbeat. Only the heads of the
-- queue are told when the present lease would end, so that the rest stays quiet.
local function when(rank)
  if rank and rank < 3 then return ends() end
  return 0
end
