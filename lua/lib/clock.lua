-- clock: the server's time. A script reads it once: on Redis 7.0 TIME advances within a script.
local time = call('TIME')
now_us = time[1] * 1000000 + time[2]
now = (now_us - now_us % 1000) / 1000
-- It is cheaper to send than a number, which the server formats. Nine times in ten it needs no zeros.
now_us_text = #time[2] == 6 and time[1] .. time[2] or nil
