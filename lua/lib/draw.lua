-- draw: draws the next fence where the metadata is ready for it, see lib/last. drawn is the fence, and drawn_text what to send for it.
local drawn = last < now_us and now_us or last + 1
local drawn_text = drawn == now_us and now_us_text or drawn
call('HSET', meta, 'seq', drawn_text)
