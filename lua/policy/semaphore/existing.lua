-- What newcomer leaves out: other limits, what the token has already, requests that are too large, and sweeping.
-- include: lib/fence
-- include: policy/semaphore/sweep
-- include: policy/semaphore/exceeds
if known ~= policy_arg then
  if known then freed, limits_changed, head_stale = true, 2, true end
  call('HSET', meta, 'limits', policy_arg .. ' ' .. policy_arg)
  call('PEXPIRE', meta, metadata_ttl, 'NX')
  set_limits(policy_arg)
  -- What was taken under a shorter window returns later now.
  keep_lock(per)
end
local held_until = holds and lease_score and lease_score > now and lease_score
-- include: policy/leases/existing
if not fence and not holds and clock_score and clock_score - BY_CLOCK + per >= now then
  fence = tonumber(call('ZSCORE', lock, '#' .. token))
end
if not fence then
  if exceeds_limit(n, holds, by_clock) then
    refusal = {ABOVE_LIMIT}
  else
    if call('EXISTS', queue) == 0 then
      if sweep_due then sweep() end
      if has_room(n, holds, by_clock) then
        -- This replaces what the token had earlier, which may be in use until now.
        if lease_score or clock_score then remove(token, true) end
        fence = next_fence()
        enter(token, ttl, fence, n, holds, by_clock)
      else
        blocked = not unswept and limits_changed == 0
      end
    end
  end
end
