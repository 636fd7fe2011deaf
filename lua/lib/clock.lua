-- clock: the server's time. A script reads it once: on Redis 7.0 TIME advances within a script.
local time = call('TIME')
now_us = time[1] * 1000000 + time[2]
now = math.floor(now_us / 1000)
