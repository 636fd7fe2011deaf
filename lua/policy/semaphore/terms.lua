-- include: policy/semaphore/state

-- terms_of is how many permits a token is about, whether it holds them, and whether it takes them by the clock.
local function terms_of(token)
  local flags, number = string.match(token, TERMS, TERMS_FROM)
  if not flags then return 0, false, false end
  return tonumber(number), string.find(flags, 'h', 1, true) ~= nil, string.find(flags, 'c', 1, true) ~= nil
end
