-- extend_expiry keeps a key for at least ms. fresh says that it probably has no expiry yet: either way, one call does mostly.
local function extend_expiry(key, ms, fresh)
  if call('PEXPIRE', key, ms, fresh and 'NX' or 'GT') == 0 then call('PEXPIRE', key, ms, fresh and 'GT' or 'NX') end
end
