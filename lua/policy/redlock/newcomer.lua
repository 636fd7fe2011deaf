-- redlock: the part that one server has in a lock on a majority of servers. It is a mutex, under the mutex's keys. policy_arg is the
-- least fence that the token names, if it names one. The short form replies with the server's clock as well, from which the
-- requester computes the least fence of its next token. That may be ahead of this server's clock by any time, so the epoch is
-- that of the fence and not of the clock. A call of its own for the short form would cost two round trips where that does not
-- decide, and the requester does not wait for long; so the long form follows in the same call.
-- include: lib/token
-- include: lib/epoch
if not max_wait then
  if call('SET', lock, token, 'NX', 'PX', ttl) then
    now_us = (call('PEXPIRETIME', lock) - ttl) * 1000
    local last, least = tonumber(pcall('HGET', meta, 'seq')), tonumber(policy_arg) or 0
    local drawn = math.max((last or 0) + 1, now_us, least)
    if last and last >= drawn - drawn % epoch and last > 1e12 then
      call('HSET', meta, 'seq', drawn)
      return drawn == least and now_us or {drawn, now_us}
    end
    call('DEL', lock)
  else
    local owner, left = call('GET', lock), call('PTTL', lock)
    if owner ~= token and left >= 0 then
      -- A lease that lasts for longer than it may takes the long form; see lease_of.
      local _, _, asked = string.match(owner or '', TOKEN, -199)
      if left - (asked or left) <= 0 then return -math.max(left, 1) end
    end
  end
end
