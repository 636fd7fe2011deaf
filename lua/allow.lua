-- allow: acquire, whose text stands before this as a function, and what is left of the limit after it. Takes the keys and
-- arguments of acquire. To its reply, if that is GRANTED or REFUSED, it appends three numbers:
--   the limit in force · permits that remain of it · ms until all that are taken have returned
-- What remains is never more than there is. It is exact if each request took one permit, or if not more than a hundred
-- takings are over and not yet swept; else it may be less.
local reply = acquire()
local granted = reply[1] == 1
if not granted and reply[1] ~= 0 then return reply end
local lock, taken_at, now = KEYS[1], 8500000000000000, reply[granted and 3 or 2]
local limit, per = string.match(redis.call('HGET', KEYS[2], 'limits'), '^%S+ %d+:(%d+):(%d+)$')
limit, per = tonumber(limit), tonumber(per)
local spent = -(tonumber(redis.call('ZMSCORE', lock, 'spent')[1]) or 0)
local over = taken_at + now - per - 1
local n = spent > 0 and redis.call('ZCOUNT', lock, taken_at, over) or 0
spent = spent - n
if n > 0 then
  for _, token in ipairs(redis.call('ZRANGE', lock, taken_at, over, 'BYSCORE', 'LIMIT', 0, 100)) do
    spent = spent - tonumber(string.match(token, '%d+$')) + 1
  end
end
local last = redis.call('ZRANGE', lock, '+inf', string.format('(%.0f', over), 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
reply[#reply + 1] = limit
reply[#reply + 1] = math.max(limit - spent, 0)
reply[#reply + 1] = last and math.min(last - taken_at - now, 0) + per + 1 or 0
return reply
