-- What newcomer leaves out: other limits, what the token has already, requests that are too large, and sweeping.
-- include: policy/semaphore/state
local flags, number = string.match(token, TERMS, TERMS_FROM)
local stored = call('HGET', meta, 'limits')
local lease_score, clock_score
-- The first two members: if these are the count and a lease, then it is the lease that ends first, and no permits are taken by the
-- clock. If it has expired, it is to be swept.
local list = flags == 'h' and call('ZRANGE', lock, '0', '1', 'WITHSCORES') or {}
if list[1] == 'used' and list[4] and list[4] - now > 0 then
  used, spent, first_end, lease_score = -list[2], 0, list[4] + 0, tonumber(call('ZSCORE', lock, token) or nil)
else
  local c = call('ZMSCORE', lock, 'used', 'spent', token, '@' .. token)
  lease_score, clock_score = tonumber(c[3] or nil), tonumber(c[4] or nil)
  -- inline: policy/semaphore/count
end
-- include: policy/semaphore/wait
local known, in_force, pause = string.match(stored or '', '^(%S+) (%S+)(.*)$')
-- include: lib/fence
-- include: policy/semaphore/terms
-- include: policy/semaphore/limits
-- include: policy/semaphore/save_limits
-- include: policy/semaphore/enter
-- include: policy/semaphore/sweep
-- include: policy/semaphore/exceeds
-- include: policy/semaphore/frees_in
local n, holds, by_clock = terms_of(token)
set_limits(in_force)
set_pause(pause)
if known ~= policy_arg then
  if known then freed, limits_changed, head_stale = true, 2, true end
  save_limits(policy_arg, policy_arg)
  call('HDEL', meta, 'window')
  call('PEXPIRE', meta, metadata_ttl, 'NX')
  set_limits(policy_arg)
  -- What was taken under a shorter window returns later now.
  keep_lock(keep_window())
elseif pause_differs then
  save_limits(known, in_force)
end
local held_until = holds and lease_score and lease_score > now and lease_score
-- include: policy/leases/existing
if not fence and not holds and clock_score and clock_score <= returned() then
  fence = tonumber(call('ZSCORE', lock, '#' .. token) or -clock_score)
end
if not fence then
  if exceeds_limit(n, holds, by_clock) then
    refusal = {ABOVE_LIMIT}
  else
    if call('EXISTS', queue) == 1 then
      blocked = not has_room(1, true, true) and not unswept and limits_changed == 0
    else
      -- A sweep is due each time that a count passes a multiple of 16; see hold.
      if (used + n) % 16 < n or (spent + n) % 16 < n then sweep() end
      if has_room(n, holds, by_clock) then
        -- This replaces what the token had earlier, which may be in use until now.
        if lease_score or clock_score then remove(token, true) end
        fence = next_fence()
        enter(token, ttl, fence, n, holds, by_clock)
        write_entered()
      else
        blocked = not unswept and limits_changed == 0
        if blocked and not max_wait and not holds then return {REFUSED, now, frees_in(token), 0} end
      end
    end
  end
end
