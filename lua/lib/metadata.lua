-- metadata: reads the meta hash of a name.
--   seq         the last fence. It is stored as a negative number while there may be tombstones, so that lib/draw does not
--               take the short form
--   kept        ms until which the hash is certain to exist
--   tombstones  ms until which there may be tombstones
--   ticket      the last ticket of a waiter; see lib/enqueue
--   limits      the limits of a semaphore
-- Other fields are read where they are used: longer (policy/mutex), streak, pass and upgrade (policy/rwlock).
-- include: lib/clock
local fields = call('HMGET', meta, 'seq', 'kept', 'tombstones', 'ticket', 'limits')
local saved_seq, kept, tombstones = tonumber(fields[1]) or 0, tonumber(fields[2]) or 0, tonumber(fields[3]) or 0
local saved_ticket, limits = tonumber(fields[4]) or 0, fields[5]
local seq, ticket = math.abs(saved_seq), saved_ticket
