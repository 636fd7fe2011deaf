-- include: lib/metadata
-- include: policy/semaphore/limits
local limits
if not at_once then
  limits = call('HGET', meta, 'limits')
  local in_force, pause = string.match(limits or '', '^%S+ (%S+)(.*)$')
  set_limits(in_force or policy_arg)
  set_pause(pause)
end
