-- allow: of the rate limit: acquire, and what remains of the limit after it. It takes the keys and arguments of acquire. To
-- the reply of acquire, if that is GRANTED or REFUSED, it appends three numbers:
--   the limit in force · permits that remain of it · ms until all that are taken have returned
-- The permits that remain are never too many. The number is exact if each request took one permit, or if at most a hundred
-- tokens are to be swept; else it may be too low.
-- include: policy/semaphore/terms
local function acquire()
  -- include: acquire
end
local reply = acquire()
if type(reply) == 'number' then reply = {GRANTED, reply, now, now + ARGV[2], 0} end
if reply[1] ~= GRANTED and reply[1] ~= REFUSED then return reply end
local remaining, returned_until = window - spent, BY_CLOCK + now - per - 1
local returned = spent > 0 and call('ZCOUNT', lock, BY_CLOCK, returned_until) or 0
if returned > 0 then
  remaining = remaining + returned
  for _, member in ipairs(call('ZRANGE', lock, BY_CLOCK, returned_until, 'BYSCORE', 'LIMIT', 0, 100)) do
    remaining = remaining + terms_of(string.sub(member, 2)) - 1
  end
end
local last = call('ZRANGE', lock, '+inf', string.format('(%.0f', returned_until), 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
local n = #reply
reply[n + 1] = window
reply[n + 2] = math.max(remaining, 0)
reply[n + 3] = last and math.min(last - BY_CLOCK - now, 0) + per + 1 or 0
return reply
