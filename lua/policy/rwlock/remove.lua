-- include: policy/leases/keep_lock

-- remove removes a lease. With the last one the key goes, and its expiry.
local function remove(token)
  call('ZREM', lock, token, '#' .. token, '+' .. token)
  longest = 0
end
