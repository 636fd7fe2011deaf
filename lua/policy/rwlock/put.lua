-- include: policy/leases/scores
-- include: policy/leases/keep_lock

-- put writes a lease of ms. fresh says that there is no other, retained that its process is to grant reads by it.
local function put(token, ms, fence, fresh, retained)
  -- inline: policy/rwlock/score
  call('ZADD', lock, now + ms, token, score, '#' .. token)
  keep_lock(ms, fresh)
end
