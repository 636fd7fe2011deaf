-- include: policy/semaphore/terms
-- include: policy/leases/keep_lock

-- set_count appends what is to be written of a count. One that is 0 is removed, so that the key goes with its last member.
local function set_count(name, n, add, gone)
  if n > 0 then
    add[#add + 1] = -n
    add[#add + 1] = name
  else
    gone[#gone + 1] = name
  end
end

local function write(add, gone)
  if #gone > 0 then
    call('ZREM', lock, unpack(gone))
    longest = 0
  end
  if #add > 0 then call('ZADD', lock, unpack(add)) end
end

-- remove ends a token's lease; one that was never used also returns what it took by the clock. It says whether there was
-- something that had not expired.
local function remove(token, never_used)
  local c = pcall('ZMSCORE', lock, token, '@' .. token, 'used', 'spent')
  if c.err then
    type_error = c
    return false
  end
  local n, holds = terms_of(token)
  local add, gone = {}, {}
  used, spent = -(tonumber(c[3]) or 0), -(tonumber(c[4]) or 0)
  if c[1] then
    gone = {token, '#' .. token, '+' .. token}
    used = used - n
    set_count('used', used, add, gone)
  end
  local returns = c[2] and never_used
  if returns then
    gone[#gone + 1] = '@' .. token
    if not holds then gone[#gone + 1] = '#' .. token end
    spent = spent - n
    call('HDEL', meta, 'window')
    set_count('spent', spent, add, gone)
  end
  write(add, gone)
  if holds then return c[1] and tonumber(c[1]) > now end
  return returns
end
