-- raise_fence: a server's second word on a lease that lies on a majority of servers. It still holds, every later fence of
-- this server will be larger than the majority's, and the server has not restarted lately.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: small facts, the sequence of numbers
-- ARGV[1] token    of the acquisition
-- ARGV[2] least    the majority's fence
-- ARGV[3] idle     ms that the meta hash is kept for
-- ARGV[4] up       ms that the server must have run for; 0: it does not matter
-- returns {GRANTED, the last fence of this server} | {REFUSED} | {UNKNOWN, ms that the server has run for}
-- writes KEYS[2]; work O(1)
local token, least, idle, up = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local owner = pcall('GET', lock)
if type(owner) == 'table' then return owner end
if owner ~= token then return {REFUSED} end
if up > 0 then
  -- It counts whole seconds, by the clock's seconds: so it can be up to one too many.
  local ran = math.max(string.match(call('INFO', 'server'), 'uptime_in_seconds:(%d+)') - 1, 0) * 1000
  if ran < up then return {UNKNOWN, ran} end
end
-- include: metadata
if seq < least then seq = least end
save_metadata(idle)
return {GRANTED, seq}
