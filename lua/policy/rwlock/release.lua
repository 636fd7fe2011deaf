-- Its token and its fence.
local sole_members = 2
-- include: policy/leases/sole
-- include: lib/clock
-- include: policy/leases/scores
outcome, score = REFUSED, score or pcall('ZSCORE', lock, token)
if type(score) == 'table' then
  type_error = score
elseif score then
  local at = tonumber(score)
  if at > now and at <= tonumber(ENDLESS) then
    -- The caller has cancelled an upgrade or a downgrade. This lease is all that it has, so it is kept.
    if cancel == '2' then return HELD end
    would_end, outcome = at, GRANTED
  end
  call('ZREM', lock, token, '#' .. token, '+' .. token)
end
