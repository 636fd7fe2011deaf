-- include: lib/metadata

-- next_fence draws a fence. It is larger than every earlier one, also after the metadata was lost, because time has passed.
local function next_fence()
  if now_us > seq then seq = now_us else seq = seq + 1 end
  return seq
end
