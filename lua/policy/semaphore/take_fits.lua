-- take_fits: takes permits that fit. The last fence is written before anything is removed, so that the script fails when memory
-- is full.
call('HSET', meta, 'seq', stamp)
if #gone > 0 then
  call('ZREM', lock, unpack(gone))
  spent = spent - returned_n
  if #gone == 200 then unswept_n = call('ZCOUNT', lock, 1 - since, TAKEN) end
elseif sweeps_all and spent > 0 then
  spent = spent - call('ZREMRANGEBYSCORE', lock, 1 - since, TAKEN)
end
spent, drawn = spent + n, now_us
call('ZADD', lock, '-' .. stamp, '@' .. token, -spent, 'spent')

-- Once per period the key is kept, for the period and a window.
local period = math.min(per, 60000)
if not c[1] or math.floor(now / period) > math.floor(last / 1000 / period) then
  local keep = per + period + 1000
  if call('PEXPIRE', lock, keep, 'NX') == 0 then call('PEXPIRE', lock, keep, 'GT') end
end

-- The field window is there if each @token is for one permit, the key has nothing else but spent, and nothing is left to sweep.
local one_each = n == 1 and #gone < 200
if one_each and not oldest then
  one_each = call('ZCARD', lock) == spent + 1 and call('ZCOUNT', lock, '-inf', TAKEN) == spent
end
if one_each and spent == window then
  local first = call('ZRANGE', lock, TAKEN, '-inf', 'BYSCORE', 'REV', 'LIMIT', '0', '1', 'WITHSCORES')[2]
  call('HSET', meta, 'window', string.sub(first, 2))
elseif one_each and not oldest then
  call('HSET', meta, 'window', '0')
elseif oldest and not one_each then
  call('HDEL', meta, 'window')
end
