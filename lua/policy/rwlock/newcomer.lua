-- A reader does not pass a waiting writer: while anybody waits, every newcomer joins the queue, in which writers are before
-- readers (place). existing has the same rule in the long form.
-- The short form is for a free lock, for a reader beside readers, and for a try while a writer holds the lock. The lease that
-- ends first says which it is; if it has expired, the long form sweeps it.
-- include: lib/clock
-- include: policy/rwlock/flags
-- include: policy/leases/scores
-- Most readers are told by the last letter of their tokens, at less cost.
local purpose = string.byte(token, -1) == 114 and 'r' or string.match(token, FLAG, -20)
if not tombstones and (purpose == 'r' or purpose == 'w') then
  -- If there is one of these keys, and it is the lock's, nobody waits.
  local keys = call('EXISTS', lock, queue)
  local free, beside = keys == 0, false
  if keys == 1 then
    local first = call('ZRANGE', lock, '1', ENDLESS, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
    local left, held_for = first[2] and first[2] - now or 0, string.match(first[1] or '', FLAG, -20)
    local shared = held_for == 'r' or held_for == 'd'
    beside = left > 0 and shared and purpose == 'r'
    if left > 0 and not shared and first[1] ~= token then
      local _, _, asked = string.match(first[1], TOKEN, -199)
      if left - (asked or left) <= 0 then
        call('ZREM', queue, '')
        return -left
      end
    end
  end
  if free or beside then
    -- include: lib/last
    if ready then
      -- include: lib/draw
      -- Unless the token holds it already.
      if call('ZADD', lock, 'NX', now + ttl, token, drawn_text, '#' .. token) == 2 then
        if free then
          call('PEXPIRE', lock, ttl)
        elseif call('PEXPIRE', lock, ttl, 'GT') == 0 then
          call('PEXPIRE', lock, ttl, 'NX')
        end
        return drawn
      end
    end
  end
end
