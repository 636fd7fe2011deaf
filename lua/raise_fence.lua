-- raise_fence: confirms at one server a lease that a majority of servers has granted. The lease is still held, every later
-- fence of this server will be larger than the majority's, and the server has not restarted lately.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- ARGV[1] token    of the lease
-- ARGV[2] min_fence    the majority's fence
-- ARGV[3] metadata_ttl  ms for which metadata is kept, see lib/metadata
-- ARGV[4] min_uptime       ms that the server must have run for; 0: any
-- returns {GRANTED, the last fence of this server} | {REFUSED} | {UNKNOWN, ms that the server has run for}
-- writes KEYS[2]; work O(1)
-- include: lib/prelude
-- include: lib/constants
-- include: lib/metadata
local token, min_fence, metadata_ttl, min_uptime = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local owner = pcall('GET', lock)
if type(owner) == 'table' then return owner end
if owner ~= token then return {REFUSED} end
if min_uptime > 0 then
  -- INFO counts whole seconds of the clock, so it may be up to one second too many.
  local uptime = math.max(string.match(call('INFO', 'server'), 'uptime_in_seconds:(%d+)') - 1, 0) * 1000
  if uptime < min_uptime then return {UNKNOWN, uptime} end
end
local run = load_metadata(metadata_ttl)
run.seq = math.max(run.seq, min_fence)
save_metadata(run, run.metadata_ttl)
return {GRANTED, run.seq}
