-- renew: make a lease that is still held last until ttl from now. It never takes one again that is over.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash, given only now and then: to keep it for a long lease, to learn the fence, to note a longer ttl
-- ARGV[1] token    of the acquisition
-- ARGV[2] ttl      ms from now to the lease's new end
-- ARGV[3] idle     ms that the meta hash is kept for
-- ARGV[4] exact    1: also if it ends sooner then; 0: a lease that lasts longer stays as it is, because this may be a
--                  late copy
-- returns {GRANTED, fence, or 0 without KEYS[2]} | {REFUSED}
-- writes KEYS[1], KEYS[2]; work O(log n)
local token, ttl, idle, exact = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
-- include: policy.extend
if not held then return {REFUSED} end
if not meta then return {GRANTED, 0} end
-- include: facts
-- include: queue
fence = confirm(token, ttl)
save_facts(idle)
return {GRANTED, fence}
