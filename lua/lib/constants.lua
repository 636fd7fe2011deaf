-- constants: the codes of replies, and the encoding of what is in the keys. A script gets only the lines that it uses. There are no
-- other magic numbers: each has its name here.

-- Reply codes. replies.go has the same list.
local REFUSED, GRANTED, WAITING, TOMBSTONED, UNKNOWN, LEFT, HELD, CONFLICT, ABOVE_LIMIT = 0, 1, 2, 3, 4, 5, 6, 7, 8
-- The reply of a fast script that has written nothing, because the general script has to decide.
local UNDECIDED = 0
-- What is added to the code of a release: there is more to admit; the queue is empty.
local RELEASE_MORE, RELEASE_QUEUE_EMPTY = 16, 32
-- What is added to the code of a renewal by a fast script: the lease was converted.
local RENEW_CONVERTED = 16
-- The sum of these is the last number of some replies: there is more to admit; the limits are others from now on.
local NOTE_MORE, NOTE_LIMITS = 1, 2
-- The sum of these is the mode of a heartbeat: the tokens are queued again; the keeper does not count on its subscription.
local HEARTBEAT_REJOIN, HEARTBEAT_UNSUBSCRIBED = 1, 2

-- The clock. Scores, fences and replies are told apart by their ranges, for which the time is between July 1998 and October 2083: UNSET_CLOCK
-- and LAST_CLOCK, in seconds. An earlier one is of a machine that does not know the time, and begins in 1970; that many seconds are added
-- to it, so that it begins in 1998. When it is set, it goes forward.
local UNSET_CLOCK, LAST_CLOCK = 900000001, 3590000000

-- Fences. An epoch is a quarter of the time for which metadata is kept, in µs, and at most this. A fence that is a reply of its own is
-- larger than the least one, as a time in µs is.
local LONGEST_EPOCH = 900000000
local LEAST_FENCE = 9e14

-- Tokens. A token identifies one request and the lease that the request leads to, and says what was asked for, so that a script can
-- grant it to a waiter of another process without any other record: <keeper>:<serial>~<note>:<ttl>.<claim_ttl><flags><number>
--   keeper     the id of the process's keeper and its address, which ends with how messages reach it, see WAY
--   serial     of the request in its keeper: 8 random letters and digits, so that others cannot forge messages about it
--   note       of the caller, for people, in base64; scripts do not read it. Without one the ~ is left out
--   ttl        ms of the lease
--   claim_ttl  ms of an unconfirmed lease: one granted to a waiter, by a message or in the reply to a heartbeat
--   flags      lower-case letters of the policy: r w u k of rwlock, k of mutex, h c k b of semaphore, f of redlock
--   number     of the policy: the permits of a semaphore, the maximum writer streak of a rwlock's w, the count of a rwlock's u, the
--              least fence of a redlock's f; else empty
-- string.match(token, TOKEN, TOKEN_FROM) gives these six as strings, or nil for a token of another library. Whoever may write a key can
-- put any text there, and the pattern can take time proportional to the square of the length. So it gets only the last bytes, and
-- no token of ours is longer.
local TOKEN, TOKEN_FROM = '^([^:]+):([^:~]+)~?[^:]*:(%d+)%.(%d+)(%l*)(%d*)$', -199
-- How messages reach a keeper is the end of its id, string.match(keeper, WAY). s: by the sharded channel <tag>:wake:<keeper>, where tag is that
-- of the name's keys. A number n: by the channel <prefix>wake:<keeper>, whose prefix is the first n bytes of prefix and name. So whoever
-- releases a lock reaches its waiters, whatever client and options it has itself. SHARDED is the end of an id of the first kind.
local WAY = '%.([s%d]%d?%d?%d?)$'
local SHARDED = '.s'
-- string.match(token, FLAG, FLAG_FROM) is the first flag, at less cost; nil if there is none.
local FLAG, FLAG_FROM = '%.%d+(%l)%l*%d*$', -20
-- string.match(token, TERMS, TERMS_FROM) is the flags and the permits of a semaphore's token, at less cost.
local TERMS, TERMS_FROM = '(%l+)(%d+)$', -14

-- The queue: token -> place, and +token -> HEARTBEATS plus the ms at which the waiter's heartbeat lapses. That is behind every place, so
-- the first members of the queue, and their ranks, are those of the waiters. It is UNSUBSCRIBED more if the keeper does not
-- count on its subscription: then the waiter is granted the lock in its turn whether a message reaches it or not, and no range finds its
-- heartbeat when it has lapsed; admit does. BEHIND_WAITERS is the upper bound of a range without heartbeats. Exact until the year 2084.
local HEARTBEATS, BEHIND_WAITERS = 9000000000000000, '(9000000000000000'
local UNSUBSCRIBED = 3600000000000
-- How much further back readers are than writers. Exact until the year 2112.
local READERS = '4500000000000000'
-- For how many ms the queue is kept longer than the youngest heartbeat counts.
local QUEUE_GRACE = 1000
-- How many of the first waiters are told when capacity may free up by itself: few, so that a long queue does not poll.
local RETRIES = 3
-- How many waiters of processes that have ended a hand-off passes over; more are left to the general script.
local DEAD_HEADS = 3

-- Leases in a zset (rwlock and semaphore): up to three members for each, which the ranges of their scores tell apart.
--   token   the server's ms at which the lease ends     1 .. ENDLESS
--   #token  its fence                                   ENDLESS .. BEYOND
--   +token  BEYOND + the ms that it was extended to, if those are more than its token says
-- A lease whose end has passed is none, whether it has been swept or not. It ends at a whole ms, less CONVERTED if it was converted: of
-- rwlock, it reads though its token says that it writes, or the other way round.
local CONVERTED = 0.5
local ENDLESS, BEYOND = '900000000000000', 8000000000000000

-- Permits: beside the leases, members whose scores no lease has, and which are less than those.
--   @token  minus the server's µs at which permits were taken that return by the clock, at most TAKEN. So the newest is the first
--           member of the key. It is the token's fence as well, unless there is a #token
--   used    minus the permits of all leases in the key, those included that have expired and are not swept yet
--   spent   minus the permits of all @tokens in it, likewise
--           A key that has neither has only @tokens, each for one permit, which ZCARD counts for less than this costs
local TAKEN = '-10000000000000'
-- A sweep is due each time that a count passes a multiple of this, so that expired leases do not pile up where there is always room.
local SWEEP_EVERY = 16
