-- release: give up whatever the token has, its lease or its place in line, and admit who may run now.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: small facts, the sequence of numbers
-- KEYS[3] queue    zset: token -> place
-- KEYS[4] heartbeats    zset: token -> ms at which its heartbeat lapses
-- ARGV[1] token    of the acquisition
-- ARGV[2] idle     ms that the meta hash is kept for
-- ARGV[3] wake     prefix of the wake-up channels
-- ARGV[4] sharded  1: wake-ups go by sharded channels, 0: by plain ones
-- ARGV[5] tombstone     ms during which a late copy of the token's request is refused; 0: there is none
-- ARGV[6] unused   1: whoever asked never learned of a lease; 0: it was held; 2: as 1, but a lease that has come in the
--                  place of another stays, and the reply is HELD
-- returns {GRANTED | LEFT | REFUSED | HELD: it had a lease, a place, nothing, or has a lease;
--           more: 1 if there is more to be admitted, 2 if nobody stood in line}
-- writes KEYS[1..4], deletions first; work O(log n)
local token, idle = ARGV[1], tonumber(ARGV[2])
local wake, sharded, tombstone, unused = ARGV[3], ARGV[4], ARGV[5], ARGV[6] == '1'
-- include: policy.drop
local first = call('ZRANGE', queue, 0, 0)
if tombstone == '0' and #first == 0 then
  -- As with acquire: a server that cannot be written to is not to say that there was nothing.
  if had == REFUSED then call('ZREM', queue, '') end
  return wrong or {had, 2}
end
-- include: metadata
-- include: queue
changed = opened
-- One that held can stand in line as well, if it asked again since an answer was lost, and was granted the lock past those
-- who wait, as it is with a mutex.
if (had == REFUSED or tombstone ~= '0') and call('ZREM', queue, token) == 1 then
  call('ZREM', heartbeats, token)
  changed = true
  if had == REFUSED then had = LEFT else first = call('ZRANGE', queue, 0, 0) end
end
if tombstone ~= '0' then add_tombstone(token, tonumber(tombstone)) end
-- Whoever waits learns what is wrong at its next heartbeat.
local more = wrong and 0 or admit(had == GRANTED and IN_ORDER and first)
save_metadata(idle)
return wrong or {had, more}
