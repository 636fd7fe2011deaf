-- metadata: reads the meta hash of a name.
--   seq         the last fence. It is stored as a negative number while there may be tombstones, so that lib/draw does not
--               take the short form
--   tombstones  ms until which there may be tombstones
-- Other fields are read where they are used: ticket (lib/enqueue), limits (policy/semaphore), longer, recalled and yield (policy/mutex),
-- streak, pass and upgrade (policy/rwlock).
-- include: lib/clock
local saved_seq = tonumber(call('HGET', meta, 'seq')) or 0
local seq, refused_until = math.abs(saved_seq), 0
if saved_seq <= 0 then refused_until = tonumber(call('HGET', meta, 'tombstones')) or 0 end
