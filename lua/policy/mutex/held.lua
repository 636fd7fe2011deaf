-- include: lib/fence

-- The lock's owner, and the fence if that is the token, since a copy of its request was granted.
local owner = pcall('GET', lock)
if type(owner) == 'table' then return owner end
blocked = owner and owner ~= token
if owner == token then
  call('PEXPIRE', lock, ttl, 'GT')
  fence = seq > 0 and seq or next_fence()
end
