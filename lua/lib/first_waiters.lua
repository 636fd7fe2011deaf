-- first_waiters returns the waiters up to this rank. What follows them in the queue are heartbeats, which begin with a plus sign.
local function first_waiters(last)
  local list = call('ZRANGE', queue, '0', last)
  for i = #list, 1, -1 do
    if string.byte(list[i]) ~= 43 then break end
    list[i] = nil
  end
  return list
end
