-- yield: sets yields, the ms until which the key is to be left free after a release, for clients of other libraries, which ask now and
-- then; nil: it is not. The meta field yield is when that ends, or has ended last, and for how many ms it is. Wants outcome.
-- include: lib/clock
if yield and outcome == GRANTED then
  local last = tonumber(string.match(call('HGET', meta, 'yield') or '0', '^%d+'))
  -- A time that is too far ahead is from before the clock was set back.
  if now >= last + 9 * yield or last > now + yield then yields = now + yield end
end
