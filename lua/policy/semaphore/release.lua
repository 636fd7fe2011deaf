-- Its token, its fence and the count of permits.
local sole_members = 3
-- include: policy/leases/sole
-- include: lib/clock
-- include: policy/semaphore/remove
-- A token that only holds permits takes a shorter way than remove, which has to read and write both counts.
-- held: the permits of other leases; nil: unknown, or there are only permits that were taken by the clock.
local flags, permits = string.match(token, TERMS, TERMS_FROM)
local held
if flags == 'h' then
  outcome = REFUSED
  local lease = pcall('ZSCORE', lock, token)
  if type(lease) == 'table' then
    type_error = lease
  elseif lease then
    if lease + 0 > now then outcome = GRANTED end
    -- The key has members for the lease, its fence and the count, and no others if nothing else is taken.
    local members = call('ZCARD', lock)
    if members > 3 then members = members - call('ZREM', lock, token, '#' .. token, '+' .. token) else members = 1 end
    if members == 1 then
      held = 0
      call('DEL', lock)
    else
      held = -call('ZADD', lock, 'INCR', permits, 'used')
      if held == 0 then
        held = nil
        call('ZREM', lock, 'used')
      end
    end
  end
else
  outcome = remove(token, cancel == '1') and GRANTED or REFUSED
end
-- Permits that would have returned by the clock are available sooner than the first waiter was told.
freed = cancel == '1' and outcome == GRANTED
