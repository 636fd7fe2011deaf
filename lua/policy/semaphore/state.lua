-- semaphore: so many permits may be held at once, or taken in any window of time, or both. The flags of a token say what it
-- does with its permits:
--   h  it holds them until its lease ends. A token without h has no lease; it is known for as long as its permits are taken
--   c  it takes them by the clock: they return when a window has passed, whatever becomes of the lease
-- Beside the leases, the lock's key has members whose scores no lease has:
--   @token  BY_CLOCK + the server's ms at which the permits were taken
--   used    minus the permits of all leases in the key, those included that have expired and are not swept yet
--   spent   minus the permits of all @tokens in it, likewise
-- The field limits of the meta hash is two times <at once>:<in a window>:<ms of the window>, with 0 for no limit: first as the
-- last caller knew them, then as they are in force, which SetLimit may have changed.
local BY_CLOCK = 8500000000000000

-- at_once, window, per: the limits in force, and the window in ms; nil: unknown.
-- used, spent: the counts, positive; nil: not read yet.
local at_once, window, per, used, spent
