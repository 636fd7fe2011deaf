-- refuse: the short form of a try that finds the lock held. A lease that lasts for longer than it may (see lease_of), and a
-- key that does not expire, take the long form.
local owner, left = call('GET', lock), call('PTTL', lock)
if owner ~= token and left > 0 then
  local _, _, asked = string.match(owner or '', TOKEN)
  if left - (asked or left) <= 0 then return -left end
end
