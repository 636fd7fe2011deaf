-- sole: the short form of a release of the only lease, of which the key has so many members: sole_members. While the key exists, the
-- lease has not ended, if the key expires when it ends; so this needs no time. On Redis 7.0 the time advances within a script, so
-- the key may expire some ms later than the lease that was written with it. Nobody else has been granted a lease meanwhile: that would
-- have removed this one.
local score = not settings and pcall('ZSCORE', lock, token)
if type(score) == 'string' and call('ZCARD', lock) == sole_members and score - call('PEXPIRETIME', lock) >= -5 then
  call('DEL', lock)
  return GRANTED + 32
end
