-- metadata: reads the meta hash of a name.
--   seq         the last fence
--   kept        ms until which the hash is certain to exist
--   tombstones  ms until which there may be tombstones
--   limits      the limits of a semaphore
-- Other fields are read where they are used: ticket (lib/enqueue), longer (policy/mutex), streak, pass and upgrade
-- (policy/rwlock).
-- include: lib/clock
local fields = call('HMGET', meta, 'seq', 'kept', 'tombstones', 'limits')
local seq, kept, tombstones = tonumber(fields[1]) or 0, tonumber(fields[2]) or 0, tonumber(fields[3]) or 0
local limits, saved_seq = fields[4], seq
