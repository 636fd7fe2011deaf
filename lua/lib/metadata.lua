-- metadata: the meta hash of a name. Fields:
--   seq         the last fence. It is stored as a negative number while there may be tombstones, so that no fast script grants anything
--   tombstones  ms until which there may be tombstones
--   ticket      the last ticket, see lib/queue
-- Others are the policy's.

-- load_metadata reads it, and returns the record run of what this script knows and what it has done. What is done to run changes
-- nothing in Redis but by save_metadata:
--   metadata_ttl              ms for which metadata is kept; nil if the script does not say it
--   policy_arg                the argument that only the policy understands; nil if the script has none
--   saved_seq, seq            the last fence as it was stored, and as it is
--   refused_until             ms until which there may be tombstones
--   head_stale                the first waiter may have been told a retry time that is now too late, or none
--   unswept                   there are more expired leases than this script has removed
--   limits_changed            NOTE_LIMITS if the limits are others from now on, else 0
--   type_error                the error reply if the lock's key has another type
--   would_end                 the ms at which the lease would have ended that this script has released, if others may end before
--   callers                   token -> true, or the ms of the lease that it gets: requests that this script answers, without a message
--   granted                   token -> {fence, until}: leases that this script has granted to callers
--   rejected                  token -> code: waiters that were removed because they have become ineligible
--   unreachable               keeper -> true: it is not subscribed here
--   lapsed                    waiters that were removed because their heartbeats had lapsed
--   try_token                 the token of a try, which is in the queue during this script only
-- and what the policy notes of the state of the lock.
local function load_metadata(metadata_ttl, policy_arg)
  local saved_seq = tonumber(call('HGET', meta, 'seq')) or 0
  return {
    policy_arg = policy_arg,
    metadata_ttl = metadata_ttl and tonumber(metadata_ttl),
    saved_seq = saved_seq,
    seq = math.abs(saved_seq),
    refused_until = saved_seq <= 0 and tonumber(call('HGET', meta, 'tombstones')) or 0,
    limits_changed = 0,
    callers = {},
    granted = {},
    rejected = {},
    unreachable = {},
    lapsed = {},
  }
end

-- next_fence draws a fence. It is larger than every earlier one, also after the metadata was lost, because time has passed.
local function next_fence(run)
  run.seq = math.max(now_us, run.seq + 1)
  return run.seq
end

-- fence_text is what to send for a fence: at less cost than a number, if it is the time.
local function fence_text(fence)
  return fence == now_us and now_us_text or string.format('%.0f', fence)
end

-- save_metadata writes the last fence, and keeps the meta hash for ttl ms. Where seq is ahead of the clock, as on a majority of
-- servers whose clocks differ, the hash is kept until the clock has reached it, so that fences do not fall. To save calls, the expiry
-- is looked at only in that case, or if the last fence was drawn in an earlier epoch, or if min_left says so. It is extended if less
-- than min_left ms are left (default: three quarters of ttl), and never shortened. So during an epoch half of ttl is left at least.
-- An unchanged sequence is written as well, so that the script fails on a read-only server, unless has_written says that the
-- script has already written something.
local function save_metadata(run, ttl, has_written, min_left)
  local stored, epoch = run.refused_until > now and -run.seq or run.seq, math.min(run.metadata_ttl * 250, LONGEST_EPOCH)
  if stored ~= run.saved_seq or not has_written then call('HSET', meta, 'seq', stored == now_us and now_us_text or stored) end
  if min_left or run.seq > now_us or run.saved_seq < now_us - now_us % epoch then
    local ahead = math.max(math.ceil(run.seq / 1000) - now, 0)
    if call('PTTL', meta) < ahead + (min_left or ttl * 3 / 4) then call('PEXPIRE', meta, ahead + ttl) end
  end
end

-- save_renewal is save_metadata after a lease was renewed for ttl. The note of a ttl that is longer than the token's has to last until the
-- next renewal with metadata, or outlive the lease: without it the lease would be cut to the token's ttl, as after the clock was set back.
local function save_renewal(run, token, ttl)
  local _, _, asked = string.match(token, TOKEN, TOKEN_FROM)
  if ttl - (asked or 0) > 0 then
    save_metadata(run, run.metadata_ttl + ttl, false, ttl + run.metadata_ttl / 2)
  else
    save_metadata(run, run.metadata_ttl)
  end
end

-- extend_expiry keeps a key for at least ms. fresh says that it probably has no expiry yet: either way, one call does mostly.
local function extend_expiry(key, ms, fresh)
  if call('PEXPIRE', key, ms, fresh and 'NX' or 'GT') == 0 then call('PEXPIRE', key, ms, fresh and 'GT' or 'NX') end
end

-- is_tombstoned says whether a request is refused that was cancelled, or broken, while a copy of it was still under way.
local function is_tombstoned(run, token)
  return run.refused_until > now and call('ZSCORE', tombstones, token)
end

-- notices_of returns what break has left beside a token's tombstone: members of the same zset with the same score, '<token> <notice>'.
-- It looks at five hundred with that score at most.
local function notices_of(token)
  local list, start = {}, token .. ' '
  local at = call('ZSCORE', tombstones, token)
  for _, member in ipairs(at and call('ZRANGE', tombstones, at, at, 'BYSCORE', 'LIMIT', '0', '500') or {}) do
    if string.sub(member, 1, #start) == start then list[#list + 1] = member end
  end
  return list
end

-- write_tombstone refuses a copy of a token's request for ms. The notice of a break stays beside it. It also removes up to a hundred
-- that have expired.
local function write_tombstone(run, token, ms)
  local expired = call('ZRANGE', tombstones, '-inf', now, 'BYSCORE', 'LIMIT', '0', '100')
  if expired[1] then call('ZREM', tombstones, unpack(expired)) end
  for _, member in ipairs(run.refused_until > now and notices_of(token) or {}) do call('ZADD', tombstones, now + ms, member) end
  call('ZADD', tombstones, now + ms, token)
  extend_expiry(tombstones, ms)
  run.refused_until = math.max(run.refused_until, now + ms)
  call('HSET', meta, 'tombstones', run.refused_until)
end
