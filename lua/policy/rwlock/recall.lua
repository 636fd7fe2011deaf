-- include: lib/token
-- include: lib/message
-- include: policy/leases/scores

-- recall notifies the processes that retain read leases, up to a hundred in one script, that somebody waits who excludes them.
-- Each lease is recalled once by a message, and is then like any other; renew replies that it was recalled. A message of
-- which nobody knows whether it was received frees nothing: the lease is held until it is released or expires.
local function recall()
  local list = call('ZRANGE', lock, RETAINED, '(8000000000000000', 'BYSCORE', 'LIMIT', '0', '100', 'WITHSCORES')
  if #list == 0 then return end
  local plain = {}
  for i = 1, #list, 2 do
    plain[i], plain[i + 1] = list[i + 1] - RETAINED + ENDLESS, list[i]
  end
  call('ZADD', lock, unpack(plain))
  for i = 1, #list, 2 do
    local keeper, serial = string.match(list[i], TOKEN, -199)
    pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel_prefix .. string.sub(keeper, 2), serial .. ' recall')
  end
end
