-- draw: replies with the fence of a lease that was just written, or takes it back. The expiry of its key says what time it is,
-- which costs less than TIME. It is a time in ms, so it is not after any fence that was drawn before the metadata was lost: the
-- long form, which draws the first one after that, takes the time in µs.
now_us = (call('PEXPIRETIME', lock) - ttl) * 1000
-- include: lib/last
if ready then
  -- include: lib/draw
  return drawn
end
call('DEL', lock)
