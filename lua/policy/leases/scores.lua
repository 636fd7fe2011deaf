-- leases: a set of leases that are held at the same time. It is no primitive: rwlock and semaphore extend it. The leases are
-- in the lock's own key, a zset, each under up to three members, which the ranges of their scores tell apart:
--   token   the server's ms at which the lease ends     1 .. ENDLESS
--   #token  its fence                                   ENDLESS .. BEYOND
--   +token  BEYOND + the ms that it was extended to, if those are more than its token says
-- A lease whose end has passed is none, whether it has been swept or not.
local ENDLESS, BEYOND = '900000000000000', 8000000000000000
