-- last: the last fence of the name, or nil. ready says that to draw the next one is all that the metadata needs, which one comparison
-- tells. It is not so if there is no last fence; if there may be tombstones (then it is negative); or if it was drawn in an earlier
-- epoch, of which each begins with a look at the metadata's expiry (see lib/save_metadata). A fence that is a reply of its own is larger
-- than 1e12, as a time in µs is, so that no other number is taken for one. If the key is of another type, the long form says so.
-- Wants now_us.
-- include: lib/epoch
local last = tonumber(pcall('HGET', meta, 'seq'))
local ready = last and last >= now_us - now_us % epoch and last > 1e12
