-- include: lib/fence
local owner = pcall('GET', lock)
if type(owner) == 'table' then return owner end
if owner == token then
  call('PEXPIRE', lock, ttl, 'GT')
  fence = seq > 0 and seq or next_fence()
end
