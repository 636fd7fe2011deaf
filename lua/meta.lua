-- meta: the small facts of a name and its one sequence of numbers, out of which tickets and fences come.
-- Wants from the policy: FACTS, the names of the facts it keeps. Wants from the script: idle, in ms.

local fact, changed = {}, {}
local seq, first_seq, kept, graves

local function load_meta(idle_facts)
  local v = call('HMGET', meta, 'seq', 'kept', 'graves', unpack(idle_facts))
  seq, kept, graves = tonumber(v[1]) or 0, tonumber(v[2]) or 0, tonumber(v[3]) or 0
  first_seq = seq
  for i, name in ipairs(idle_facts) do fact[name] = v[i + 3] end
end
