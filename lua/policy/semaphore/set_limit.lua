-- set_limit: of the transition limit. It counts what is taken, and sets a new limit: that of the window, if the caller has one. It
-- also sets the pause.
-- include: policy/semaphore/counts
-- include: policy/semaphore/sweep
-- include: policy/semaphore/load_limits
-- include: policy/semaphore/save_limits
-- include: policy/semaphore/keep_window
read_counts('used')
local a, w = at_once, window
if limit > 0 then
  if string.match(policy_arg, '^%d+:0:') then a = limit else w = limit end
  if w < math.huge and per == 0 then per = tonumber(string.match(policy_arg, '%d+$')) end
  if a ~= at_once or w ~= window then limits_changed, head_stale = 2, true end
  at_once, window = a, w
end
if pause > 0 then
  -- It counts from now, which is rounded down to ms, so it is a ms longer if it begins within one.
  pause_left = math.max(pause_left, now_us % 1000 > 0 and pause + 1 or pause)
elseif pause < 0 then
  head_stale, pause_left = head_stale or pause_left > 0, 0
end
if limit > 0 or pause ~= 0 then
  if a == math.huge then a = 0 end
  if w == math.huge then w = 0 end
  local known = string.match(limits or '', '^(%S+)') or policy_arg
  save_limits(known, string.format('%.0f:%.0f:%.0f', a, w, per))
  keep_lock(keep_window())
end
has_room(math.huge, true, true)
