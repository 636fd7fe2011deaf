-- refuse: the short form of a try that finds the lock held. Waiters, and a lease that lasts for longer than it may (see
-- lease_of), take the long form.
local owner, left = call('GET', lock), call('PTTL', lock)
if owner ~= token then
  local _, _, asked = string.match(owner or '', TOKEN)
  if left > 0 and left - (asked or left) <= 0 then return {REFUSED, 0, left, 0} end
end
