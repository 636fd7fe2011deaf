-- include: lib/heartbeats
-- include: policy/rwlock/readers

-- alone: nobody waits but the head, so no readers are passed.
local alone

-- count_streak counts a writer that passes waiting readers. When it is as many as the writer's token allows, the readers
-- that wait now go before the next writer. It returns the old values.
local function count_streak(token, number)
  if alone then
    local streak = call('HGET', meta, 'streak')
    if streak and streak ~= '0' then call('HSET', meta, 'streak', '0') end
    return {streak = streak or '0', keeps_pass = true}
  end
  local list = call('ZRANGE', queue, BEHIND_WAITERS, READERS, 'BYSCORE', 'REV', 'LIMIT', '0', '2', 'WITHSCORES')
  local last = token ~= try_token and list[list[1] == try_token and 4 or 2]
  local known = call('HMGET', meta, 'streak', 'pass')
  local streak, max_streak = 0, tonumber(number) or 0
  if last then streak = (tonumber(known[1]) or 0) + 1 end
  if max_streak > 0 and streak >= max_streak then
    call('HSET', meta, 'streak', '0', 'pass', last)
  elseif streak > 0 or known[1] and known[1] ~= '0' then
    call('HSET', meta, 'streak', streak)
  end
  return {streak = known[1] or 0, pass = known[2]}
end
