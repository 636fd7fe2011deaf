local owner = pcall('GET', lock)
if type(owner) == 'table' then return owner end
renewed = owner == token
if renewed then
  if exact then call('PEXPIRE', lock, ttl) else call('PEXPIRE', lock, ttl, 'GT') end
end
