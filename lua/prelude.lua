-- prelude: what every script stands on; it opens each of them.

-- Every reply is an array led by one of these; replies.go holds the same list.
local REFUSED, GRANTED, WAITING, BURIED, UNKNOWN, LEFT, HELD = 0, 1, 2, 3, 4, 5, 6

local call, pcall = redis.call, redis.pcall
local lock, meta, queue, beats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

-- The server's clock: read_clock reads it, once per script, because TIME moves within a script on Redis 7.0.
local now, now_us

local function read_clock()
  local t = call('TIME')
  now_us = t[1] * 1000000 + t[2]
  now = math.floor(now_us / 1000)
end

-- terms takes a token apart: <keeper>:<serial>:<ttl>.<claim><flags><permits>. It returns nil for a foreign token.
local function terms(token)
  return string.match(token, '^([^:]+):([^:]+):(%d+)%.(%d+)(%l*)(%d*)$')
end

-- linger keeps a key for ms more, and never for less than it had.
local function linger(key, ms)
  if call('PEXPIRE', key, ms, 'GT') == 0 then call('PEXPIRE', key, ms, 'NX') end
end

-- The facts of a name, a few fields of the meta hash, and its one sequence of numbers, which gives tickets and fences.
local fact, changed = {}, {}
local seq, kept, graves = 0, 0, 0

-- load_facts reads the sequence and the facts named; read_clock comes first.
local function load_facts(names)
  local v = call('HMGET', meta, 'seq', 'kept', 'graves', unpack(names))
  seq, kept, graves = tonumber(v[1]) or 0, tonumber(v[2]) or 0, tonumber(v[3]) or 0
  for i, name in ipairs(names) do fact[name] = v[i + 3] end
end

-- number draws the next number: larger than every one before it, also after the sequence was lost (time has passed).
local function number()
  seq = math.max(seq + 1, now_us)
  return seq
end

-- note changes a fact; save_facts writes what was noted, and keeps the hash for idle ms. To spare a call it pushes
-- the expiry out only when half of it has gone; kept is the moment the hash was last promised to live until.
local function note(name, value)
  changed[#changed + 1] = name
  changed[#changed + 1] = value
  fact[name] = value
end

local function save_facts(idle)
  local push = kept < now + idle / 2 or kept > now + idle
  if push then note('kept', now + idle) end
  call('HSET', meta, 'seq', seq, unpack(changed))
  if push then call('PEXPIRE', meta, idle) end
end

-- buried: the token was given up while a copy of its request was still under way. It may not be granted any more.
-- Graves lie among the heartbeats, with a mark in front, and are swept with them.
local function buried(token)
  return graves > now and call('ZSCORE', beats, '-' .. token)
end

local function bury(token, ms)
  call('ZADD', beats, now + ms, '-' .. token)
  linger(beats, ms)
  note('graves', now + ms)
end
