-- include: policy/leases/renew
if renewed and retained then recalled = tonumber(call('ZSCORE', lock, '#' .. token)) < RETAINED and 1 or 0 end
