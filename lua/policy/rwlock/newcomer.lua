-- Writers have preference: while anybody waits, a newcomer joins the queue, even a reader that could hold the lock now.
-- include: lib/fence
-- include: policy/rwlock/state
-- include: policy/leases/keep_lock
local purpose = purpose_of(token)
if (purpose == 'r' or purpose == 'w') and call('EXISTS', queue) == 0 then
  read_state()
  if not holder or readers_hold and purpose == 'r' then
    local drawn = next_fence()
    -- Unless the token holds it already.
    if call('ZADD', lock, 'NX', now + ttl, token, drawn, '#' .. token) == 2 then
      keep_lock(ttl, not holder)
      fence = drawn
    end
  end
end
