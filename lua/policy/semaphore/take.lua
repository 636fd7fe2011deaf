-- take: the short form for permits that return by the clock. Once per period it keeps the key, for the period and a window.
--   drawn        the fence, if it took them
--   retry_after  the ms after which it could have them, if they are not available; then it has written nothing
--   newest       µs at which the newest was taken, in that case
--   unswept_n    at least so many of the permits that count as taken have returned
-- The last fence is written before anything is removed, so that the script fails when memory is full.
local most, ms = string.match(policy_arg, '^0:(%d+):(%d+)$')
local c, newest, unswept_n = call('ZMSCORE', lock, 'spent', '@' .. token), last, 0
if most and not c[2] and call('EXISTS', queue) == 0 then
  local n, oldest, mixed, gone = number + 0, stored[3] or 0, not stored[3], {}
  window, per, spent = most + 0, ms + 0, -(c[1] or 0)
  local since, room = now_us - per * 1000, spent + n <= window
  -- Each @token is for one permit, and there are few that have returned.
  local sweeps_all = room and not mixed and spent > 0 and (now_us - last < 10000 or spent < 1000)
  if spent > 0 and not sweeps_all and (room or oldest + 0 < since) then
    local list, left = call('ZRANGE', lock, TAKEN, 1 - since, 'BYSCORE', 'REV', 'LIMIT', 0, 100), spent
    for i, member in ipairs(list) do
      local _, taken = string.match(member, TERMS, TERMS_FROM)
      left = left - taken
      gone[2 * i - 1], gone[2 * i] = member, '#' .. string.sub(member, 2)
    end
    room = left + n <= window
    if room then
      spent, mixed = left, mixed or #list == 100
    elseif #list == 0 then
      oldest = string.sub(call('ZRANGE', lock, TAKEN, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2], 2)
      newest = string.sub(call('ZRANGE', lock, 0, 0, 'WITHSCORES')[2], 2)
    end
  end
  if room then
    local stamp, period = time[1] .. string.sub(1000000 + time[2], 2), math.min(per, 60000)
    call('HSET', meta, 'seq', stamp)
    if sweeps_all then
      spent = spent - call('ZREMRANGEBYSCORE', lock, 1 - since, TAKEN)
    elseif #gone > 0 then
      call('ZREM', lock, unpack(gone))
      if #gone == 200 then unswept_n = call('ZCOUNT', lock, 1 - since, TAKEN) end
    end
    spent, drawn = spent + n, now_us
    call('ZADD', lock, '-' .. stamp, '@' .. token, -spent, 'spent')
    if not c[1] or math.floor(now / period) > math.floor(last / 1000 / period) then
      local keep = per + period + 1000
      if call('PEXPIRE', lock, keep, 'NX') == 0 then call('PEXPIRE', lock, keep, 'GT') end
    end
    if mixed and #gone < 200 then
      -- If there is one @token for each permit, and nothing else but spent, then the next request need not look at them.
      mixed = call('ZCARD', lock) ~= spent + 1 or call('ZCOUNT', lock, '-inf', TAKEN) ~= spent
    end
    if mixed or n > 1 then
      if stored[3] then call('HDEL', meta, 'window') end
    elseif spent == window then
      oldest = call('ZRANGE', lock, TAKEN, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
      call('HSET', meta, 'window', string.sub(oldest, 2))
    elseif not stored[3] then
      call('HSET', meta, 'window', 0)
    end
  elseif n == 1 and spent == window and oldest + 0 >= since then
    retry_after = math.ceil((oldest + 1 - since) / 1000)
  end
end
