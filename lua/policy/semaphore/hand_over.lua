fence, used = next_fence(), held + number
local stamp = fence == now_us and now_us_text or string.format('%.0f', fence)
call('ZADD', lock, '-' .. (held == 0 and number or used), 'used', heir_until, heir, stamp, '#' .. heir)
keep_lock(heir_until - now, held == 0)
