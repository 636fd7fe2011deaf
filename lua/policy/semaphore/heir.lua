-- The first waiter, if it gets permits that it holds, and nobody can be granted any after it: it waits alone, or takes all that are
-- free, and no lease has expired. Left to lib/admit are limits with a window, a waiter that has a lease already, and other leases
-- of which one may end before the next waiter's heartbeat, in the reply to which it is told when.
-- include: policy/leases/scores
if outcome == GRANTED and held and not tombstone and not freed then
  local most = string.match(call('HGET', meta, 'limits') or '', ' (%d+):0:%d+$')
  local flags, n = string.match(heads[1], TERMS, TERMS_FROM)
  local left = most and flags == 'h' and most - held - n
  -- Nobody waits behind it if the next member is a heartbeat.
  local next_waiter = string.byte(heads[2] or '+') ~= 43 and heads[2]
  if left and (left == 0 or left > 0 and not next_waiter) then
    if held == 0 then
      heir, used, spent = heads[1], 0, 0
    else
      -- If the first member is the count, and the second a lease, then that one ends first, and no permits are taken by the clock.
      local first = call('ZRANGE', lock, '0', '1', 'WITHSCORES')
      local _, _, ttl, claim_ttl = string.match(next_waiter or '', TOKEN, -199)
      local told = not next_waiter or claim_ttl ~= ttl and first[4] - now >= claim_ttl / 2
      if first[1] == 'used' and first[4] - now > 0 and told and not call('ZSCORE', lock, heads[1]) then
        heir, used, spent = heads[1], held, 0
      end
    end
  end
end
