local function frees_in()
  return math.max(call('PTTL', lock), 0)
end
