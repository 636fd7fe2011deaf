-- prelude: the names that every general script and every function may use without being given them: the commands, the keys and the
-- time. A script reads the time once at most: on Redis 7.0 it advances within a script.
local call, pcall = redis.call, redis.pcall
-- Names of the script are read faster than those of the server.
local KEYS, ARGV = KEYS, ARGV
-- lock        the primitive's own key: of a mutex, a string, the holder's token; of others a zset, see lib/constants
-- meta        hash: metadata of the name, see lib/metadata
-- queue       zset: the waiters, see lib/constants
-- tombstones  zset: token -> ms until which its request is refused
local lock, meta, queue, tombstones = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local time = call('TIME')
local seconds = time[1] - UNSET_CLOCK < 0 and time[1] + UNSET_CLOCK or time[1] - LAST_CLOCK < 0 and time[1]
  or error('the clock of the server is at ' .. time[1] .. ' s, later than ' .. LAST_CLOCK .. ', October 2083: set it')
-- The server's time in µs, in ms, and in µs as a string, which is cheaper to send than a number, which the server formats.
local now_us = seconds * 1000000 + time[2]
local now = (now_us - now_us % 1000) / 1000
local now_us_text = #time[2] == 6 and seconds .. time[2] or string.format('%.0f', now_us)
