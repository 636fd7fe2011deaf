-- heartbeats: a waiter's heartbeat is a member of the queue as well: + and its token. Its score is HEARTBEATS plus the ms at which
-- it lapses. That is behind every place, so the first members of the queue, and their ranks, are those of the waiters. A token and
-- its heartbeat are added by one command, and removed by one; a try, which is in the queue during its script only, has none.
-- The score is more by lib/deaf if the keeper cannot receive messages at present.
-- The numbers are exact until the year 2084. BEHIND_WAITERS is the upper bound of a range that leaves the heartbeats out.
local HEARTBEATS, BEHIND_WAITERS = 9000000000000000, '(9000000000000000'
