-- hold: the short form for permits that are held. A sweep is due each time that the count passes a multiple of 16, so that expired
-- leases do not pile up where there is always room.
local taken, most, keys = number, string.match(policy_arg, '^%d+'), call('EXISTS', lock, queue)
local room = keys == 0 and number - most <= 0
if keys == 1 then
  local c = call('ZMSCORE', lock, 'used', token)
  taken = taken - (c[1] or 0)
  -- If there is no count, then the one key is the queue, or has only permits that return by the clock.
  room = taken - most <= 0 and taken % 16 >= number + 0 and not c[2] and c[1]
end
if room then
  drawn = now_us
  call('HSET', meta, 'seq', stamp)
  call('ZADD', lock, stamp, '#' .. token, now + ttl, token, '-' .. taken, 'used')
  if keys == 0 then call('PEXPIRE', lock, ttl) else call('PEXPIRE', lock, ttl, 'GT') end
end
