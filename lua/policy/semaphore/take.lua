-- take: the short form for permits that return by the clock. It sets
--   drawn        the fence, if it took them
--   retry_after  the ms after which it could have them, if they are not available; then it has written nothing
--   newest       µs at which the newest was taken, in that case
--   unswept_n    at least so many of the permits that count as taken have returned
-- Mostly each @token is for one permit, which the field window says. Then as many permits are taken as there are members, and a
-- full window needs no look at them.
local most, ms = string.match(policy_arg, '^0:(%d+):(%d+)$')
local newest, unswept_n = last, 0
if most and call('EXISTS', queue) == 0 then
  window, per = most + 0, ms + 0
  -- What was taken before since has returned. oldest: as the field window has it, 0 if the window was not full; nil: unknown.
  local n, since, oldest, known = number + 0, now_us - per * 1000, tonumber(stored[3] or nil), nil
  if n == 1 and oldest and oldest >= since then
    if not call('ZSCORE', lock, '@' .. token) then retry_after = math.ceil((oldest + 1 - since) / 1000) end
  else
    -- known: the token has permits already. Where all are one each, ZADD says so.
    if oldest then
      spent = call('ZCARD', lock)
    else
      local c = call('ZMSCORE', lock, 'used', 'spent', '@' .. token)
      -- inline: policy/semaphore/count
      known = c[3]
    end
    -- include: policy/semaphore/read_returned
    if not known and spent - returned_n + n <= window then
      -- include: policy/semaphore/take_fits
    elseif not known and full_since then
      retry_after = math.ceil((full_since + 1 - since) / 1000)
    end
  end
end
