-- include: policy/leases/scores

-- fence_at is the fence that the score of a #token says; nil if it has none.
local function fence_at(score)
  local fence = tonumber(score or nil)
  return fence and fence >= RETAINED and fence - RETAINED + ENDLESS or fence
end
