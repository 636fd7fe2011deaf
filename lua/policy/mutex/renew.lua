local owner = pcall('GET', lock)
if type(owner) == 'table' then return owner end
renewed = owner == token
if renewed then
  if exact then call('PEXPIRE', lock, ttl) else call('PEXPIRE', lock, ttl, 'GT') end
end
if renewed and retained and meta then recalled = call('HGET', meta, 'recalled') == token and 1 or 0 end
