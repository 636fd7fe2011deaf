-- include: policy/semaphore/state

-- set_limits sets the limits in force from <at once>:<in a window>:<ms of the window>.
local function set_limits(text)
  local a, w, ms = string.match(text or '', '^(%d+):(%d+):(%d+)$')
  if not a then return end
  at_once, window, per = tonumber(a), tonumber(w), tonumber(ms)
  if at_once == 0 then at_once = math.huge end
  if window == 0 then window = math.huge end
end

-- set_pause sets the pause from what follows the limits.
local function set_pause(text)
  if not text or text == '' then return end
  local ends, ms = string.match(text, '^ (%d+) (%d+)$')
  if not ends then return end
  pause_left = math.max(math.min(ends - now, ms + 0), 0)
  pause_differs = pause_left == 0 or pause_left < ends - now
end
