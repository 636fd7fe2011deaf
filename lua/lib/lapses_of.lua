-- include: lib/heartbeats
-- include: lib/deaf

-- lapses_of returns the ms at which the heartbeats of waiters lapse: at most a few hundred tokens. It is 0 for one that has none,
-- and DEAF more for one that cannot receive messages.
local function lapses_of(tokens)
  local members = {}
  for i, token in ipairs(tokens) do members[i] = '+' .. token end
  local lapses = call('ZMSCORE', queue, unpack(members))
  for i = 1, #members do lapses[i] = lapses[i] and lapses[i] - HEARTBEATS or 0 end
  return lapses
end
