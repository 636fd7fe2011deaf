-- prelude: the reply codes, the keys, and the variables by which the parts of a script pass on results. Every script begins
-- with it. Redis scripts have no globals, so what several parts use is declared here, or in the part that sets it.

-- Reply codes. replies.go holds the same list.
local REFUSED, GRANTED, WAITING, TOMBSTONED, UNKNOWN, LEFT, HELD, CONFLICT, ABOVE_LIMIT = 0, 1, 2, 3, 4, 5, 6, 7, 8

local call, pcall = redis.call, redis.pcall
-- Names of the script are read faster than those of the server.
local KEYS, ARGV = KEYS, ARGV
local lock, meta, queue, tombstones = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

-- now, now_us: the server's time in ms and in µs, and now_us_text, the latter as a string, or nil; see lib/clock.
-- policy_arg: the argument that only the policy understands; nil if the transition has none.
-- fence, freed, refusal, blocked, outcome, would_end, renewed: results of the policy's parts; see policy/README.md.
-- ended: the lock's key, if the lease that a release ends is all that is in it. It is still to be deleted, or to be replaced by
--   the lease of the heir; see lib/hand_on.
-- type_error: the error reply if the lock's key has another type. It is returned and not raised, after everything that can
--   be done without the key.
-- unswept: there are more expired leases than this script has removed.
-- head_stale: the first waiter may have been told a retry time that is now too late, or none.
-- yields: the ms until which a release leaves the key free; see lib/yield.
-- limits_changed: 2 if the limits are others from now on, else 0: a bit of the reply.
local now, now_us, now_us_text, policy_arg
-- try_token: the token of a try, which is in the queue during this script only.
local fence, freed, refusal, blocked, outcome, would_end, renewed, ended, type_error, unswept, head_stale, try_token, yields
local limits_changed = 0
