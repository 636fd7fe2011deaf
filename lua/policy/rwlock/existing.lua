-- What newcomer leaves out: a lease that the token has already; one that its process is to retain (policy_arg is RETAIN); an
-- upgrade or a downgrade, for which policy_arg is the token of the lease that it replaces; and a lock whose leases have expired.
-- include: lib/fence
-- include: lib/heartbeats
-- include: policy/leases/ends_at
-- include: policy/rwlock/state
read_state()
-- Beside another's write lease it has none.
local held_until = (not writer_holds or holder == token) and ends_at(token)
-- include: policy/leases/existing
-- include: policy/rwlock/upgrade
-- include: policy/rwlock/replace
if fence then
  freed = purpose == 'd'
elseif purpose == 'd' or purpose == 'u' then
  read_state()
  local origin_purpose = purpose_of(policy_arg)
  if not ends_at(policy_arg) or purpose == 'd' and (origin_purpose == 'r' or origin_purpose == 'd') then
    refusal = {REFUSED, now, 0, 0}
  elseif purpose == 'd' or sole then
    fence, freed, state_known = next_fence(), true, false
    replace(policy_arg, token, ttl, fence)
    -- A copy of its request may have queued it.
    if purpose == 'u' then call('ZREM', queue, token, '+' .. token) end
  else
    -- Each of two upgrades would wait for the other's read lease. Of two attempts to upgrade the same lease the later one
    -- counts: the other is being cancelled.
    local function attempt(token)
      local _, _, _, _, _, number = string.match(token, TOKEN, -199)
      return tonumber(number) or 0
    end
    local other, origin_of_other = waiting_upgrade()
    -- inline: lib/deaf
    local score = other and call('ZSCORE', queue, '+' .. other)
    if score and (score - HEARTBEATS) % DEAF > now then
      if origin_of_other ~= policy_arg or attempt(other) > attempt(token) then refusal = {CONFLICT} end
    end
    if max_wait and not refusal then
      -- The other one has lapsed, or is an earlier attempt to upgrade the same lease.
      if other and other ~= token then call('ZREM', queue, other, '+' .. other) end
      call('HSET', meta, 'upgrade', token .. ' ' .. policy_arg)
    end
  end
else
  read_state()
  if (not holder or readers_hold and purpose == 'r') and call('EXISTS', queue) == 0 then
    fence = next_fence()
    put(token, ttl, fence, not holder, policy_arg == RETAIN)
  end
  blocked = writer_holds and not fence
end
