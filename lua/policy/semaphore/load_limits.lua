-- include: lib/metadata
-- include: policy/semaphore/limits
if not at_once then set_limits(string.match(limits or '', ' (%S+)$') or policy_arg) end
