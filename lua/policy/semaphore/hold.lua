-- hold: the short form for permits that are held. A sweep is due each time that the count passes a multiple of 16, so that expired
-- leases do not pile up where there is always room.
local c, n = call('ZMSCORE', lock, 'used', token), tonumber(number)
local taken = n - (c[1] or 0)
local room = taken <= string.match(policy_arg, '^%d+') + 0 and taken % 16 >= n
if room and not c[2] and call('EXISTS', queue) == 0 then
  local stamp = time[1] .. string.sub(1000000 + time[2], 2)
  drawn = now_us
  call('HSET', meta, 'seq', stamp)
  call('ZADD', lock, stamp, '#' .. token, now + ttl, token, -taken, 'used')
  if c[1] or call('PEXPIRE', lock, ttl + 1000, 'NX') == 0 then call('PEXPIRE', lock, ttl + 1000, 'GT') end
end
