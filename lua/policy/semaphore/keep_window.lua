-- include: policy/semaphore/state

-- keep_window is for how many ms the lock's key is kept from when permits are taken by the clock: for a window, and for the rest
-- of the period in which they are taken (see take), and a second.
local function keep_window()
  return per + math.min(per, 60000) + 1000
end
