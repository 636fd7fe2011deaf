-- clock: the server's time, read once per script: TIME moves within a script on Redis 7.0.
local t = call('TIME')
now_us = t[1] * 1000000 + t[2]
now = math.floor(now_us / 1000)
