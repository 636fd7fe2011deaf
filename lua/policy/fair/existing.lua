-- include: policy/mutex/held
if not owner and call('EXISTS', queue) == 0 then
  call('SET', lock, token, 'PX', ttl)
  fence = next_fence()
end
