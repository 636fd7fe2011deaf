-- include: policy/semaphore/limits

-- save_limits writes the limits, and the pause.
local function save_limits(known, in_force)
  local text = known .. ' ' .. in_force
  if pause_left > 0 then text = string.format('%s %.0f %.0f', text, now + pause_left, pause_left) end
  pause_differs = false
  call('HSET', meta, 'limits', text)
end
