-- leases: a set of leases that are held at the same time. It is no primitive: rwlock and semaphore extend it. The leases are
-- in the lock's own key, a zset, each under up to three members, which the ranges of their scores tell apart:
--   token   the server's ms at which the lease ends     1 .. ENDLESS
--   #token  its fence                                   ENDLESS .. RETAINED
--           RETAINED - ENDLESS + its fence, while a process retains the lease and nobody has recalled it (rwlock): so they are
--           found without reading others, and no member is to be removed but those of any lease. Until the year 2109
--   +token  BEYOND + the ms that it was extended to, if those are more than its token says
-- A lease whose end has passed is none, whether it has been swept or not.
local ENDLESS, RETAINED, BEYOND = '900000000000000', 4500000000000000, 8000000000000000
