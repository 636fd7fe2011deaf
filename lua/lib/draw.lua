-- draw: the short form of drawing a fence, where the metadata needs nothing else. Wants now_us. drawn is the fence, and drawn_text
-- what to send for it; or drawn is nil if that takes the long form, which one comparison tells: if there is no last fence; if
-- there may be tombstones (then it is negative); or if it was drawn in an earlier epoch, of which each begins with extending the
-- metadata's expiry (see lib/save_metadata). A fence that is a reply of its own is larger than 1e12, as a time in µs is, so that
-- no other number is taken for one. If the key is of another type, the long form says so.
local last, drawn, drawn_text = tonumber(pcall('HGET', meta, 'seq')), nil, nil
if last and last >= now_us - now_us % epoch and last > 1e12 then
  drawn = last < now_us and now_us or last + 1
  drawn_text = drawn == now_us and now_us_text or drawn
  call('HSET', meta, 'seq', drawn_text)
end
