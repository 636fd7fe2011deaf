-- both: the short form for permits that are held, and that return by the clock as well.
local most_held, most, ms = string.match(policy_arg, '^(%d+):(%d+):(%d+)$')
local c, n = call('ZMSCORE', lock, 'used', 'spent', token, '@' .. token), tonumber(number)
local held, taken = n - (c[1] or 0), n - (c[2] or 0)
local room = most and held <= most_held + 0 and taken <= most + 0 and held % 16 >= n and taken % 16 >= n
-- If there is no count, then the key may have only permits that return by the clock, and none that are held.
if room and not c[3] and not c[4] and call('EXISTS', lock, queue) == ((c[1] or c[2]) and 1 or 0) then
  drawn = now_us
  call('HSET', meta, 'seq', stamp)
  call('ZADD', lock, '-' .. stamp, '@' .. token, stamp, '#' .. token, now + ttl, token, -held, 'used', -taken, 'spent')
  local keep = math.max(ttl, ms + math.min(ms, 60000)) + 1000
  if call('PEXPIRE', lock, keep, 'GT') == 0 then call('PEXPIRE', lock, keep, 'NX') end
end
