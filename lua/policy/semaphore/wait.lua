-- wait: queues a request for permits that are held, if all are taken and none of the leases has expired. Most requests that wait
-- find it so, and this decides before the functions for other cases are even defined, at two thirds of the cost.
-- include: policy/leases/scores
-- include: lib/enqueue
-- include: lib/extend_expiry
-- include: lib/save_metadata
local flags, number = string.match(token, TERMS, TERMS_FROM)
local most = flags == 'h' and known == policy_arg and in_force == known and string.match(known, '^(%d+):0:')
if max_wait and most and number - most <= 0 and used - most >= 0 and not lease_score then
  local first = call('ZRANGE', lock, '1', ENDLESS, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')[2]
  if first and first + 0 > now then
    call('ZADD', heartbeats, now + heartbeat_ttl, token)
    local at = enqueue(token)
    local rank = call('ZRANK', queue, token)
    extend_expiry(queue, heartbeat_ttl + 1000, rank == 0)
    extend_expiry(heartbeats, heartbeat_ttl + 1000, rank == 0)
    save_metadata(metadata_ttl, true, min_left)
    return {WAITING, now, seq, at, rank, rank < 3 and first - now or 0, 0}
  end
end
