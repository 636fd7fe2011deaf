-- hand_on: the ordinary case of a release that others wait for: all that is to be written is the lease of one waiter, the heir,
-- who is alive and can receive a message. It does what lib/admit would do, but without creating its functions, which is half
-- the cost. If anything is out of the ordinary, it does nothing, and lib/admit decides. If the next waiter may have to be
-- notified, it leaves that to lib/admit. Wants heads, the first two members of the queue, of which the first is a waiter.
-- include: lib/token
-- include: lib/stamp
-- include: lib/last
-- include: lib/heartbeats
-- include: lib/channels
local heir
-- include: policy/KIND/heir
-- The time is the next fence, unless the clock was set back.
if heir and ready and last < now_us then
  local keeper, serial, ttl, claim_ttl, flags, number = string.match(heir, TOKEN, -199)
  local member = '+' .. heir
  local score = keeper and call('ZSCORE', queue, member)
  local lapse = score and score - HEARTBEATS
  local left, claim = lapse and lapse - now or 0, tonumber(claim_ttl)
  if left > 0 and not string.find(flags, 's', 1, true) then
    local channel = channel_prefix .. keeper
    -- inline: lib/listens
    if listens then
      -- Its last 13 digits are cheaper to send than a number, which the server formats. Before 2001 they are fewer.
      local heir_until = left >= claim and now + claim or lapse < 1e12 and lapse or string.sub(score, 4)
      call('ZREM', queue, heir, member)
      fence = now_us
      -- include: policy/KIND/hand_over
      call('HSET', meta, 'seq', stamp)
      pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, serial .. ' ' .. stamp)
      -- A claim that is the whole lease, or is cut to less than half, gives the next waiter a new retry time.
      head_stale = freed or ttl == claim_ttl or left < claim / 2
      if not head_stale then return outcome end
    end
  end
end
