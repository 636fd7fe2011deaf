-- extend_expiry keeps a key for at least ms.
local function extend_expiry(key, ms)
  if call('PTTL', key) < ms then call('PEXPIRE', key, ms) end
end
