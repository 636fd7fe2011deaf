-- metadata: reads the meta hash of a name.
--   seq         the last fence. It is stored as a negative number while there may be tombstones, so that lib/draw does not
--               take the short form
--   tombstones  ms until which there may be tombstones
--   ticket      the last ticket of a waiter; see lib/enqueue
-- Other fields are read where they are used: limits (policy/semaphore), longer and recalled (policy/mutex), streak, pass and upgrade
-- (policy/rwlock).
-- include: lib/clock
local fields = call('HMGET', meta, 'seq', 'ticket')
local saved_seq, saved_ticket = tonumber(fields[1]) or 0, tonumber(fields[2]) or 0
local seq, ticket, tombstones = math.abs(saved_seq), saved_ticket, 0
if saved_seq <= 0 then tombstones = tonumber(call('HGET', meta, 'tombstones')) or 0 end
