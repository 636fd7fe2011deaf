used = held + number
call('ZADD', lock, '-' .. (held == 0 and number or used), 'used', heir_until, heir, stamp, '#' .. heir)
if held == 0 then call('PEXPIRE', lock, claim_ttl) else keep_lock(claim_ttl) end
