-- A request for a lease that its process is to retain does not pass waiters: nobody would recall it for them. If it was granted while
-- they came, it is recalled for them now.
-- include: policy/mutex/held
-- include: policy/mutex/left_free
if not owner then blocked = left_free() ~= nil end
if not owner and not blocked and (policy_arg ~= 'retain' or call('EXISTS', queue) == 0) then
  call('SET', lock, token, 'PX', ttl)
  fence = next_fence()
elseif owner and string.sub(owner, -1) == 'k' and (blocked or call('EXISTS', queue) == 1) then
  -- include: policy/mutex/recall
end
