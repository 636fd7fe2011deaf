-- limits: how many permits of a semaphore may be held at once, or taken in any window of time, or both. The field limits of the meta
-- hash is two times <at once>:<in a window>:<ms of the window>, with 0 for no limit: first as the last caller knew them, then as they are
-- in force, which limit may have changed. While permits by the clock are paused, the ms at which that ends follows, and for how many ms
-- it was to last when this was written. The fast scripts do not know the field then, so they need not look for a pause.
-- In run:
--   at_once, window, per  the limits in force, and the window in ms; nil: unknown
--   limits                the field; nil: not read yet; false: none
--   pause_left            the ms for which no permits are granted that return by the clock
--   pause_differs         the field has another pause, one that has ended, or that lasts longer because the clock was set back

-- set_limits sets the limits in force from <at once>:<in a window>:<ms of the window>.
local function set_limits(run, text)
  local at_once, window, per = string.match(text or '', '^(%d+):(%d+):(%d+)$')
  if not at_once then return end
  run.at_once, run.window, run.per = tonumber(at_once), tonumber(window), tonumber(per)
  if run.at_once == 0 then run.at_once = math.huge end
  if run.window == 0 then run.window = math.huge end
end

-- load_limits reads them, unless that has been done; if none are stored, they are those that the caller knows. It returns them as the
-- last caller knew them, and as they are in force.
local function load_limits(run)
  if run.limits ~= nil then return string.match(run.limits or '', '^(%S+) (%S+)') end
  run.limits, run.pause_left = call('HGET', meta, 'limits'), 0
  local known, in_force, pause = string.match(run.limits or '', '^(%S+) (%S+)(.*)$')
  set_limits(run, in_force or run.policy_arg)
  local ends, ms = string.match(pause or '', '^ (%d+) (%d+)$')
  if ends then
    run.pause_left = math.max(math.min(ends - now, ms + 0), 0)
    run.pause_differs = run.pause_left == 0 or run.pause_left < ends - now
  end
  return known, in_force
end

-- save_limits writes the limits, and the pause. What the field window says is true of the limits before.
local function save_limits(run, known, in_force)
  run.limits = known .. ' ' .. in_force
  if run.pause_left > 0 then run.limits = string.format('%s %.0f %.0f', run.limits, now + run.pause_left, run.pause_left) end
  run.pause_differs = false
  call('HSET', meta, 'limits', run.limits)
  call('HDEL', meta, 'window')
end

-- keep_window is for how many ms the lock's key is kept from when permits are taken by the clock: for a window, and for the rest of the
-- period in which they are taken (see window_acquire), and a second.
local function keep_window(run)
  return run.per + math.min(run.per, 60000) + 1000
end

-- adopt_limits puts the limits in force that a caller knows, if they differ from those of the last caller. It returns whether there
-- were others before, so that waiters may be admitted now.
local function adopt_limits(run)
  local known, in_force = load_limits(run)
  if known == run.policy_arg then
    if run.pause_differs then save_limits(run, known, in_force) end
    return false
  end
  save_limits(run, run.policy_arg, run.policy_arg)
  call('PEXPIRE', meta, run.metadata_ttl, 'NX')
  set_limits(run, run.policy_arg)
  -- What was taken under a shorter window returns later now.
  keep_lock(run, keep_window(run))
  if known then run.limits_changed, run.head_stale = NOTE_LIMITS, true end
  return known ~= nil
end

-- exceeds_limit says whether there are never so many permits.
local function exceeds_limit(run, n, holds, by_clock)
  return holds and n > run.at_once or by_clock and n > run.window
end
