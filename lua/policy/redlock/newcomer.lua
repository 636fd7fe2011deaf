-- redlock: the part that one server has in a lock on a majority of servers. It is a mutex, under the mutex's keys. A token
-- may name the least fence that its lease is to have: the requester computes it from the clocks of all servers, so that all
-- give the same fence. This is the whole of acquire before the queue: the mutex's existing is included here.
-- include: policy/mutex/newcomer
-- include: lib/token
if not fence then
  -- include: policy/mutex/existing
end
if fence then
  local _, _, _, _, flags, number = string.match(token, TOKEN)
  local least = flags and string.find(flags, 'f', 1, true) and tonumber(number) or 0
  if fence < least then fence, seq = least, least end
end
