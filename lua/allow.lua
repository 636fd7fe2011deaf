-- allow: of the rate limit: acquire, and what remains of the limit after it. It takes the keys and arguments of acquire, of
-- which the last is none. To the reply of acquire, if that is GRANTED or REFUSED, it appends three numbers:
--   the limit in force · permits that remain of it · ms until all that are taken have returned
-- The permits that remain are never too many. The number is exact if each request took one permit, or if at most a hundred
-- tokens are to be swept; else it may be too low.
-- In the short form the limit is the one that the caller knows, and the reply is of two numbers, or of three:
--   fence · permits that remain; all will have returned a window later
--   REFUSED · ms until it may be granted · ms until all that are taken have returned; no permit remains
-- A refusal need not write: a replica that refuses a request because it does not know yet that permits have returned lets
-- nobody take too much.
local token, settings = ARGV[1], ARGV[4]
policy_arg = ARGV[3]
-- include: policy/semaphore/state
-- include: policy/semaphore/short
if ready and flags == 'c' then
  -- include: policy/semaphore/take
  if drawn then return {drawn, window - spent + unswept_n} end
  if retry_after then return {REFUSED, retry_after, math.ceil((newest + per * 1000 + 1 - now_us) / 1000)} end
end
-- include: policy/semaphore/terms
-- include: policy/semaphore/returned
local function acquire()
  -- include: acquire
end
local reply = acquire()
if reply[1] ~= GRANTED and reply[1] ~= REFUSED then return reply end
-- In a pause none remains, and none has returned before its end.
local remaining, out = window - spent, spent > 0 and call('ZCOUNT', lock, returned() + 1, TAKEN) or 0
if out > 0 then
  remaining = remaining + out
  for _, member in ipairs(call('ZRANGE', lock, TAKEN, returned() + 1, 'BYSCORE', 'REV', 'LIMIT', 0, 100)) do
    remaining = remaining + terms_of(member) - 1
  end
end
local newest = spent > 0 and call('ZRANGE', lock, 0, 0, 'WITHSCORES')[2]
local n = #reply
reply[n + 1] = window
reply[n + 2] = pause_left > 0 and 0 or math.max(remaining, 0)
reply[n + 3] = math.max(newest and math.min(return_in(newest), per + 1) or 0, pause_left)
return reply
