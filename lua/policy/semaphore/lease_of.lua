-- include: policy/leases/lease_of
-- include: policy/semaphore/terms
-- include: policy/semaphore/take_now
-- include: policy/semaphore/returned
-- include: policy/leases/keep_lock
-- include: policy/semaphore/keep_window
local lease_in_set = lease_of

-- A token without a lease has one in effect for as long as its permits are taken. The waiter learns of its grant only now,
-- since the message was lost; permits by the clock count as taken now, so that they return that much later.
local function lease_of(token)
  local _, holds, by_clock = terms_of(token)
  local score = by_clock and tonumber(call('ZSCORE', lock, '@' .. token) or nil)
  local taken = score and (not per or score <= returned())
  local fence, lease_end
  if holds then
    fence, lease_end = lease_in_set(token)
  elseif taken then
    local _, _, _, claim_ttl = string.match(token, TOKEN, -199)
    fence, lease_end = tonumber(call('ZSCORE', lock, '#' .. token) or -score), now + claim_ttl
  end
  if fence and taken then
    take_now('@' .. token, score)
    keep_lock(per and keep_window() or 0)
  end
  return fence, lease_end
end
