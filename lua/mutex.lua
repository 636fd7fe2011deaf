-- mutex: the policy of a lock that is one string key, the token, as SET key token NX PX writes it.
-- A newcomer may take a free lock past the queue: throughput comes first.

local FACTS = {'fence', 'cap'}
local free = false

-- owner is the token in the key, false when there is none, or the error reply of a key of another type.
local function owner()
  return pcall('GET', lock)
end

-- extend makes the token's lease last until ttl from now; false if it has none. Only an exact one may shorten.
local function extend(token, ttl, exact)
  if owner() ~= token then return false end
  if exact then
    call('PEXPIRE', lock, ttl)
  else
    call('PEXPIRE', lock, ttl, 'GT')
  end
  return true
end

-- draw gives a grant that was just written to the key its fence.
local function draw()
  note('fence', number())
  if fact.cap and fact.cap ~= '0' then note('cap', 0) end
  return seq
end

-- fence is that of the lease in the key; a new one, larger than all before, if the facts were lost.
local function fence()
  return tonumber(fact.fence) or draw()
end

-- take grants a newcomer what it may have at once, or confirms what it has already. It returns the fence; or nil;
-- or nil and an error reply.
local function take(token, ttl)
  if call('SET', lock, token, 'NX', 'PX', ttl) then return draw() end
  local who = owner()
  if type(who) == 'table' then return nil, who end
  if who ~= token then return nil end
  extend(token, ttl)
  return fence()
end

-- held is the fence and the end of the token's lease, or nil.
local function held(token)
  if owner() ~= token then return nil end
  return fence(), now + call('PTTL', lock)
end

-- drop ends the token's lease: GRANTED if it had one, REFUSED if not, or an error reply.
local function drop(token)
  local who = owner()
  if type(who) == 'table' then return who end
  if who ~= token then return REFUSED end
  call('DEL', lock)
  return GRANTED
end

-- confirm is the fence of a lease that is held; it notes a ttl longer than the one asked for at first. A foreign
-- holder took no number when it came, so it gets one now.
local function confirm(token, ttl)
  local keeper, _, first = terms(token)
  if ttl > tonumber(first or 0) then note('cap', ttl) end
  return keeper and fence() or draw()
end

-- turn is the part of the queue that may be served now, and how many at the most; nil if nobody may.
local function turn()
  free = call('EXISTS', lock) == 0
  if free then return '-inf', '+inf', 1 end
end

-- fits: may this waiter have the lock, after those that this script has granted already?
local function fits()
  return free
end

-- give writes the grant of a waiter for ms and returns its fence.
local function give(token, ms)
  free = false
  call('SET', lock, token, 'PX', ms)
  return draw()
end

-- ends is when room may come by itself, in ms from now; 0 if that is not known.
local function ends()
  return math.max(call('PTTL', lock), 0)
end

-- place is where in the queue a newcomer with this ticket stands.
local function place(ticket)
  return ticket
end

-- mend: after the server's clock was set back, no lease may last longer than its whole ttl.
local function mend()
  local who = owner()
  if type(who) ~= 'string' then return end
  local _, _, ttl = terms(who)
  if not ttl then return end
  ttl = math.max(tonumber(ttl), tonumber(fact.cap or 0))
  if call('PTTL', lock) > ttl then call('PEXPIRE', lock, ttl) end
end
