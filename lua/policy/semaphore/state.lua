-- semaphore: so many permits may be held at once, or taken in any window of time, or both. The flags of a token say what it
-- does with its permits:
--   h  it holds them until its lease ends. A token without h has no lease; it is known for as long as its permits are taken
--   c  it takes them by the clock: they return when a window has passed, whatever becomes of the lease
-- Beside the leases, the lock's key has members whose scores no lease has, and which are less than those:
--   @token  minus the server's µs at which the permits were taken, at most TAKEN. So the newest is the first member of the
--           key. It is the token's fence as well, unless there is a #token
--   used    minus the permits of all leases in the key, those included that have expired and are not swept yet
--   spent   minus the permits of all @tokens in it, likewise
--           A key that has neither has only @tokens, each for one permit, which ZCARD counts for less than this costs; see take
-- Fields of the meta hash:
--   limits  two times <at once>:<in a window>:<ms of the window>, with 0 for no limit: first as the last caller knew them,
--           then as they are in force, which SetLimit may have changed. While permits by the clock are paused, the ms at which
--           that ends follows, and for how many ms it was to last when this was written. The short forms do not know the field
--           then, so they need not look for a pause
--   window  what take may rely on. If it is there, the key has only @tokens, each for one permit, and the newest was taken at
--           the last fence, when all that had returned were removed. If the window is full as well, it is the µs at which the
--           oldest was taken
local TAKEN = '-10000000000000'

-- TERMS matches the end of a token, from TERMS_FROM on: its flags, and its permits. It costs less than TOKEN.
local TERMS, TERMS_FROM = '(%l+)(%d+)$', -14

-- at_once, window, per: the limits in force, and the window in ms; nil: unknown.
-- used, spent: the counts, positive; nil: not read yet.
-- first_end: when the lease ends that ends first; nil: unknown.
-- pause_left: the ms for which no permits are granted that return by the clock. pause_differs: the metadata has another pause,
-- one that has ended, or that lasts longer because the clock was set back.
local at_once, window, per, used, spent, first_end
local pause_left, pause_differs = 0, false
