-- redlock: the policy of the part that one server has in a lock on the majority of several. It is a mutex, under the
-- mutex's keys; only that a token may name, behind the flag f, the least fence that its lease is to have. Its owner
-- reckons it from what the servers' clocks have said before, so that all servers give the same fence.

-- part: base
-- include: single.base

-- part: take
local open = true
-- include: single.take
if fence then
  local least = tonumber(string.match(token, 'f(%d+)$') or 0)
  if fence < least then fence, seq = least, least end
end

-- part: drop
-- include: single.drop

-- part: extend
-- include: single.extend

-- part: rest
-- include: single.rest
