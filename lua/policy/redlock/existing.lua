-- A token may name the least fence that its lease is to have: the requester computes it from the clocks of all servers, so
-- that all give the same fence.
-- include: policy/mutex/existing
-- include: lib/token
if fence then
  local _, _, _, _, flags, number = string.match(token, TOKEN, -199)
  local least = flags and string.find(flags, 'f', 1, true) and tonumber(number) or 0
  if fence < least then fence, seq = least, least end
end
