-- epoch: a part of the time for which metadata is kept, at most a quarter of it, in µs: 15 minutes, or a quarter of less than an hour.
-- What draws the first fence of an epoch looks at the metadata's expiry; see lib/save_metadata. Wants settings, or nil for 15 minutes.
local epoch = 900000000
if settings and string.byte(settings) >= 50 then epoch = string.sub(settings, 2, 14) * 250 end
