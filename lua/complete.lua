-- complete: the work under a lease is done, and nobody may do it again for ms. The lease ends, and a record of it keeps
-- everybody out: "done:" and the token, which no request has as its own. So a late renewal or release does not find the
-- token, and a late copy of this script finds the record.
-- KEYS[1] lock     the primitive's own key
-- ARGV[1] token    of the acquisition
-- ARGV[2] ms       from now until the record ends
-- returns {GRANTED | REFUSED: the token held the lease, or its record is there already; or not, 0}
-- writes KEYS[1]; work O(1)
local token, ms = ARGV[1], ARGV[2]
local owner, record = pcall('GET', lock), 'done:' .. token
if type(owner) == 'table' then return owner end
if owner == token then
  -- The expiry is written first: a script that has written may go on when memory is full.
  call('PEXPIRE', lock, ms)
  call('SET', lock, record, 'KEEPTTL')
elseif owner ~= record then
  return {REFUSED, 0}
end
return {GRANTED, 0}
