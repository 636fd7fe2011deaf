-- include: policy/mutex/left_free

-- PTTL rounds down: a lock whose lease ends within this millisecond has 0 left, which would mean that nothing is known.
local function frees_in()
  local left = call('PTTL', lock)
  if left == -2 then return left_free() or 0 end
  return left == 0 and 1 or math.max(left, 0)
end
