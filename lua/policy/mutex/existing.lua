-- include: policy/mutex/held
if not owner then
  call('SET', lock, token, 'PX', ttl)
  fence = next_fence()
end
