-- PTTL rounds down: a lock whose lease ends within this millisecond has 0 left, which would mean that nothing is known.
local function frees_in()
  local left = call('PTTL', lock)
  return left == 0 and 1 or math.max(left, 0)
end
