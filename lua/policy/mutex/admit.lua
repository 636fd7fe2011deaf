-- include: lib/fence
-- include: lib/first_waiters
-- include: policy/KIND/frees_in
local WAITERS_DIFFER = false

-- free: whether the lock is free; nil if it is not known yet. With a fence, the lock that was released is handed on already.
local free = outcome == GRANTED and not fence and not yields or nil

local function next_in_line(last)
  if free == nil then free = call('EXISTS', lock) == 0 and not left_free() end
  return free and first_waiters(last)
end

local function fits()
  return free
end

local function write_grant(token, ms)
  free = false
  call('SET', lock, token, 'PX', ms)
  return next_fence()
end

-- write_grant has written everything.
local write_grants

local function undo_grant()
  free = true
  call('DEL', lock)
end

local function ineligible()
  return nil
end
