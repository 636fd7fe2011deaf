-- include: policy/semaphore/state
-- include: policy/leases/keep_lock

-- drop removes members, and writes the counts, which do not include them any more. With the last lease and the last @token the
-- key goes.
local function drop(members)
  longest, first_end = 0, nil
  if used + spent == 0 then return call('DEL', lock) end
  local counts = {}
  if used > 0 then counts = {-used, 'used'} else members[#members + 1] = 'used' end
  if spent > 0 then
    counts[#counts + 1] = -spent
    counts[#counts + 1] = 'spent'
    call('HDEL', meta, 'window')
  else
    members[#members + 1] = 'spent'
  end
  call('ZREM', lock, unpack(members))
  call('ZADD', lock, unpack(counts))
end

-- remove ends a token's lease; one that was never used also returns what it took by the clock. It says whether there was
-- something that had not expired.
local function remove(token, never_used)
  local flags, n = string.match(token, TERMS, TERMS_FROM)
  if not flags then return false end
  local c = flags == 'h' and pcall('ZMSCORE', lock, 'used', 'spent', token)
    or pcall('ZMSCORE', lock, 'used', 'spent', token, '@' .. token)
  if c.err then
    type_error = c
    return false
  end
  -- The key's counts do not include what is granted and not written yet.
  if not used then
    -- inline: policy/semaphore/count
  end
  local lease, taken = c[3], never_used and c[4]
  if not lease and not taken then return false end
  if lease then used = used - n end
  if taken then
    spent = spent - n
    call('HDEL', meta, 'window')
  end
  drop(used + spent > 0 and {token, '#' .. token, '+' .. token, taken and '@' .. token or nil})
  if lease then return lease + 0 > now end
  return not string.find(flags, 'h', 1, true)
end
