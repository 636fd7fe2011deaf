-- include: lib/metadata
-- include: policy/semaphore/limits
local limits
if not at_once then
  limits = call('HGET', meta, 'limits')
  set_limits(string.match(limits or '', ' (%S+)$') or policy_arg)
end
