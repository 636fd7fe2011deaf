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

-- The field window is there, and the count is not, if each @token is for one permit, the key has nothing else, and nothing is left
-- to sweep.
local one_each = n == 1 and #gone < 200
if one_each and oldest then
  if call('ZADD', lock, 'NX', '-' .. stamp, '@' .. token) == 0 then drawn = nil end
else
  call('ZADD', lock, '-' .. stamp, '@' .. token, -spent, 'spent')
  one_each = one_each and call('ZCARD', lock) == spent + 1 and call('ZCOUNT', lock, '-inf', TAKEN) == spent
  if one_each then call('ZREM', lock, 'spent') end
end
if one_each and spent == window then
  local first = call('ZRANGE', lock, TAKEN, '-inf', 'BYSCORE', 'REV', 'LIMIT', '0', '1', 'WITHSCORES')[2]
  call('HSET', meta, 'window', string.sub(first, 2))
elseif one_each and not oldest then
  call('HSET', meta, 'window', '0')
elseif oldest and not one_each then
  call('HDEL', meta, 'window')
end

-- Once per period the key is kept, for the period and a window.
local period = per < 60000 and per or 60000
if spent == n or last < now_us - now_us % (period * 1000) then
  local keep = per + period + 1000
  if call('PEXPIRE', lock, keep, 'NX') == 0 then call('PEXPIRE', lock, keep, 'GT') end
end
