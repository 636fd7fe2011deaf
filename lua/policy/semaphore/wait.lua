-- wait: queues a request for permits that are held, if none of the leases has expired, and all permits are taken, or it does not
-- fit and nobody else waits. Most requests that wait find it so, and this decides before the functions for other cases are even
-- defined, at two thirds of the cost.
-- include: policy/leases/scores
-- include: lib/enqueue
-- include: lib/extend_expiry
-- include: lib/save_metadata
if max_wait and first_end and not lease_score and stored == policy_arg .. ' ' .. policy_arg then
  local most = string.match(stored, '^(%d+):0:')
  local left = most and number - most <= 0 and most - used
  if left and (left <= 0 or left - number < 0 and call('EXISTS', queue) == 0) then
    local at, is_last = enqueue(token, now + queue_ttl - 1000)
    local rank = is_last and call('ZCARD', queue) / 2 - 1 or call('ZRANK', queue, token)
    extend_expiry(queue, queue_ttl, rank == 0)
    save_metadata(metadata_ttl, true, min_left)
    return {WAITING, now, seq, at, rank, rank < 3 and first_end - now or 0, 0}
  end
end
