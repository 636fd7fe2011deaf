-- complete: ends a lease whose work is done, and records that nobody may do the work again for record_ttl ms. The record
-- takes the lease's place in the lock's key: "done:" and the token. No request has it as its token. So a late renewal or
-- release does not find its token, and a late copy of this script finds the record. It gives it an expiry if somebody has taken that away.
-- KEYS[1] lock     the primitive's own key
-- ARGV[1] token    of the lease
-- ARGV[2] record_ttl       ms from now until the record ends
-- returns GRANTED: the token held the lease, or its record exists already | REFUSED
-- writes KEYS[1]; work O(1)
-- include: lib/prelude
-- include: lib/constants
local token, record_ttl = ARGV[1], ARGV[2]
local owner, record = pcall('GET', lock), 'done:' .. token
if type(owner) == 'table' then return owner end
if owner == token then
  -- The expiry is written first: a script that has written may continue when memory is full.
  call('PEXPIRE', lock, record_ttl)
  call('SET', lock, record, 'KEEPTTL')
elseif owner == record then
  call('PEXPIRE', lock, record_ttl, 'NX')
else
  return REFUSED
end
return GRANTED
