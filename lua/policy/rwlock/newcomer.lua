-- A reader does not pass a waiting writer: while anybody waits, every newcomer joins the queue, in which writers are before
-- readers (place). existing has the same rule in the long form.
-- The short form is for a free lock, for a reader beside readers, and for a try while a writer holds the lock. The lease that
-- ends first says which it is; if it has expired, the long form sweeps it.
-- include: lib/clock
-- include: policy/rwlock/purpose
-- include: policy/leases/scores
local purpose = purpose_of(token)
if not tombstones and (purpose == 'r' or purpose == 'w') then
  -- If there is one of these keys, and it is the lock's, nobody waits.
  local keys = call('EXISTS', lock, queue)
  local free, beside = keys == 0, false
  if keys == 1 then
    local first = call('ZRANGE', lock, '1', ENDLESS, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
    local left, held_for = first[2] and first[2] - now or 0, first[1] and purpose_of(first[1])
    local shared = held_for == 'r' or held_for == 'd'
    beside = left > 0 and shared and purpose == 'r'
    if left > 0 and not shared and first[1] ~= token then
      local _, _, asked = string.match(first[1], TOKEN)
      if left - (asked or left) <= 0 then
        call('ZREM', queue, '')
        return -left
      end
    end
  end
  if free or beside then
    -- include: lib/draw
    -- Unless the token holds it already.
    if drawn and call('ZADD', lock, 'NX', now + ttl, token, drawn_text, '#' .. token) == 2 then
      local keep = ttl + 1000
      if free then
        call('PEXPIRE', lock, keep)
      elseif call('PEXPIRE', lock, keep, 'GT') == 0 then
        call('PEXPIRE', lock, keep, 'NX')
      end
      return drawn
    end
  end
end
