-- window_acquire: takes one permit that returns by the clock, or refuses it until the oldest one has returned, if nobody waits, and the
-- key has nothing but permits that were taken one by one, which the field window says.
-- KEYS[1] lock     zset: @token -> minus the µs at which its permit was taken
-- KEYS[2] meta     hash: seq is the last fence, less than 0 while there may be tombstones; limits and window, see policy/limits, policy/window
-- KEYS[3] queue    zset: the waiters
-- ARGV[1] token    of this request, with the flags c; this is its first call
-- ARGV[2] limits   as the caller knows them
-- ARGV[3] epoch    µs: see LONGEST_EPOCH, for which it is left out
-- returns {the fence, permits that remain} | {less than 0: minus the ms until the oldest returns, ms until all have returned} | UNDECIDED
-- writes KEYS[1..2] unless it refuses: a replica that does so since it does not know yet that permits have returned lets nobody
-- take too much; work O(log n), and O(1) amortized for each permit that returns
-- include: lib/constants
local call = redis.call
local lock, meta, queue, token, limits, epoch = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3] or LONGEST_EPOCH
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

-- What is rare is left to the general script, as by semaphore_acquire; so is a key that is not all of one each. The clock of a machine
-- that does not know the time is behind every fence.
local known = call('HMGET', meta, 'seq', 'limits', 'window')
local last, oldest = tonumber(known[1] or 0) or 0, tonumber(known[3] or nil)
if last <= LEAST_FENCE or last >= now_us or last < now_us - now_us % epoch or known[2] ~= limits .. ' ' .. limits then return UNDECIDED end
local most, window_ms = string.match(limits, '^0:(%d+):(%d+)$')
if not most or not oldest or not string.find(token, '%dc1$', -3) or call('EXISTS', queue) == 1 then return UNDECIDED end

-- What was taken before since has returned. When the window was full at the last fence, oldest is when the oldest was taken, else it is
-- in the past. So either the window is full, or there is room after what has returned is removed. The server cuts off the fractions of a
-- reply. A token that has a permit is refused as well, so a request is repeated by the general script.
local window_us = window_ms * 1000
local since = now_us - window_us
if oldest >= since then return {(since - oldest) / 1000 - 1, (last - since) / 1000 + 1} end
local now_us_text = #time[2] == 6 and time[1] .. time[2] or string.format('%.0f', now_us)
local spent, returned = call('ZCARD', lock), nil
if spent >= 1000 and now_us - last >= 10000 then -- many may have returned
  returned = call('ZRANGE', lock, TAKEN, 1 - since, 'BYSCORE', 'REV', 'LIMIT', '0', '100')
  if #returned == 100 then return UNDECIDED end
end
if call('ZADD', lock, 'NX', '-' .. now_us_text, '@' .. token) == 0 then return UNDECIDED end -- a copy of a request
call('HSET', meta, 'seq', now_us_text)
if not returned then
  spent = spent - call('ZREMRANGEBYSCORE', lock, 1 - since, TAKEN)
elseif returned[1] then
  spent = spent - call('ZREM', lock, unpack(returned))
end
spent = spent + 1
local remaining = most - spent
if remaining == 0 then
  local first = call('ZRANGE', lock, TAKEN, '-inf', 'BYSCORE', 'REV', 'LIMIT', '0', '1', 'WITHSCORES')[2]
  call('HSET', meta, 'window', string.sub(first, 2))
end
-- The key is kept for a window and a period, once per period.
local period_us = window_us < 60000000 and window_us or 60000000
if spent == 1 or last < now_us - now_us % period_us then
  local keep = (window_us + period_us) / 1000 + 1000
  if call('PEXPIRE', lock, keep, 'NX') == 0 then call('PEXPIRE', lock, keep, 'GT') end
end
return {now_us, remaining}
