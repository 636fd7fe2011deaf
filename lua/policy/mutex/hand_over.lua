call('SET', lock, heir, 'PXAT', heir_until)
