-- hand_on: the ordinary case of a release that others wait for: all that is to be written is the lease of one waiter, the heir,
-- who is alive and can receive a message. It does what lib/admit would do, but without creating its functions, which is half
-- the cost. If anything is out of the ordinary, it does nothing, and lib/admit decides.
-- include: lib/token
-- include: lib/fence
-- include: lib/message
-- include: lib/save_metadata
local heir
-- include: policy/KIND/heir
if heir then
  local keeper, serial, ttl, claim_ttl, flags, number = string.match(heir, TOKEN)
  local lapse = keeper and call('ZSCORE', heartbeats, heir)
  local left, claim = lapse and lapse - now or 0, tonumber(claim_ttl)
  -- A claim that is cut to less than half, or is the whole lease, gives the next waiter a new retry time.
  if left > 0 and left >= claim / 2 and ttl ~= claim_ttl and not string.find(flags, 's', 1, true) and subscribed(keeper) then
    local heir_until = left < claim and lapse or now + claim
    -- include: policy/KIND/hand_over
    call('ZREM', queue, heir)
    call('ZREM', heartbeats, heir)
    publish(keeper, grant_message(serial, fence))
    save_metadata(metadata_ttl)
    return outcome
  end
end
