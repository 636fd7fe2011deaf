-- extend_expiry keeps a key for at least ms.
local function extend_expiry(key, ms)
  if call('PEXPIRE', key, ms, 'GT') == 0 then call('PEXPIRE', key, ms, 'NX') end
end
