-- refuse: the short form of a try that finds the lock held. A lease that lasts for longer than it may (see lease_of), a key
-- that does not expire, and a lease that a process retains, and is to be recalled, take the long form.
local owner, left = call('GET', lock), call('PTTL', lock)
if owner ~= token and left > 0 then
  local _, _, asked, _, flags = string.match(owner or '', TOKEN, -199)
  if flags ~= 'k' and left - (asked or left) <= 0 then return -left end
end
