-- include: lib/clock
-- include: policy/leases/ends_at
-- include: policy/rwlock/remove
outcome = REFUSED
local score = pcall('ZSCORE', lock, token)
if type(score) == 'table' then
  type_error = score
else
  would_end = ends_at(token, score or 0)
  -- The caller has cancelled an upgrade or a downgrade. This lease is all that it has, so it is kept.
  if would_end and cancel == '2' then return HELD end
  if would_end then outcome = GRANTED end
  remove(token)
end
