-- include: policy/semaphore/state

-- terms is how many permits flags and number of a token are about, whether it holds them, and whether it takes them by the clock.
local function terms(flags, number)
  if flags == 'h' then return number + 0, true, false end
  return tonumber(number) or 0, string.find(flags, 'h', 1, true) ~= nil, string.find(flags, 'c', 1, true) ~= nil
end

local function terms_of(token)
  local flags, number = string.match(token, TERMS, TERMS_FROM)
  if not flags then return 0, false, false end
  return terms(flags, number)
end
