-- draw: the short form of drawing a fence, where the metadata needs nothing else. drawn is the fence, or nil if that takes the
-- long form: if there is no last fence, or there may be tombstones (then it is negative), or the metadata is to be kept for
-- less than min_left. A fence that is a reply of its own is larger than 1e12, as a time in µs is, so that no other number is
-- taken for one. If the key is of another type, the long form says so.
-- include: lib/clock
local known, drawn = pcall('HMGET', meta, 'seq', 'kept'), nil
local last, kept = tonumber(known[1] or 0) or 0, tonumber(known[2] or 0) or 0
if last > 1e12 and kept - now - min_left > 0 then
  drawn = math.max(last + 1, now_us)
  call('HSET', meta, 'seq', drawn)
end
