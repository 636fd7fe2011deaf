-- stamp: the time in µs as a string.
-- include: lib/clock
local stamp = now_us_text or string.format('%.0f', now_us)
