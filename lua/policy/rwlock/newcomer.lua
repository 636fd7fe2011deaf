-- A reader does not pass a waiting writer: while anybody waits, every newcomer joins the queue, in which writers are before
-- readers (place). existing has the same rule in the long form.
-- The short form is for a free lock, for a reader beside readers, and for a try while a writer holds the lock. The lease that
-- ends first says which it is; if it has expired, the long form sweeps it.
-- include: lib/clock
-- include: policy/rwlock/purpose
-- include: policy/leases/scores
-- include: policy/leases/keep_lock
local purpose = purpose_of(token)
if not heartbeats and (purpose == 'r' or purpose == 'w') and call('EXISTS', queue) == 0 then
  local first = call('ZRANGE', lock, '1', ENDLESS, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
  local left, held_for = first[2] and first[2] - now, first[1] and purpose_of(first[1])
  local shared = held_for == 'r' or held_for == 'd'
  if not left or left > 0 and shared and purpose == 'r' then
    -- include: lib/draw
    -- Unless the token holds it already.
    if drawn and call('ZADD', lock, 'NX', now + ttl, token, drawn, '#' .. token) == 2 then
      keep_lock(ttl, not left)
      return drawn
    end
  elseif left > 0 and not shared and first[1] ~= token then
    local _, _, asked = string.match(first[1], TOKEN)
    if left - (asked or left) <= 0 then
      call('ZREM', queue, '')
      return -left
    end
  end
end
