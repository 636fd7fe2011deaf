call('SET', lock, heir, 'PXAT', heir_until)
fence = next_fence()
