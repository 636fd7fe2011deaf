-- include: policy/semaphore/terms

-- take_now makes what an @token took at -score count as taken now. Without a lease, the score has been its fence as well.
local function take_now(member, score)
  local token = string.sub(member, 2)
  local _, holds = terms_of(token)
  if not holds then
    -- A key without counts has nothing but @tokens.
    local c = call('ZMSCORE', lock, 'used', 'spent')
    if not c[1] and not c[2] then call('ZADD', lock, -call('ZCARD', lock), 'spent') end
    call('ZADD', lock, 'NX', -score, '#' .. token)
  end
  call('ZADD', lock, -now_us, member)
  call('HDEL', meta, 'window')
end
