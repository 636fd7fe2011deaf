-- prelude: what every script stands on; it opens each of them.
-- What a script may not need comes after the place where it may return. With functions the assembly sees to that: it leaves
-- out those that nothing names, and puts each of the others before what names it first. So no two of what a script declares
-- outside of functions may have one name.

-- Every reply is an array led by one of these; replies.go holds the same list.
local REFUSED, GRANTED, WAITING, TOMBSTONED, UNKNOWN, LEFT, HELD, CONFLICT, ABOVE_LIMIT = 0, 1, 2, 3, 4, 5, 6, 7, 8

local call, pcall = redis.call, redis.pcall
local lock, meta, queue, heartbeats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local now, now_us

-- What the parts of a policy leave behind: fence, of what take has granted, and opened, whether others may be let in by
-- that; refusal, the reply if take may never grant it; had, what drop has ended, and ended, when that would have ended by
-- itself, where this matters; held, whether extend has found a lease; unswept, whether more is over than it has taken out;
-- news, 2 if the limits have changed; wrong, the error if the lock's key is of another type, which is returned and not
-- raised, after what can be done all the same. Extra is what a policy is asked besides, if the script has it.
local fence, opened, refusal, had, ended, held, unswept, wrong, extra
local limits_changed = 0
