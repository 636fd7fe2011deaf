-- mutex: the policy of a lock that a newcomer may take past the queue when it is free: throughput comes first.

-- part: base
-- include: single.base

-- part: take
local open = true
-- include: single.take

-- part: drop
-- include: single.drop

-- part: extend
-- include: single.extend

-- part: rest
-- include: single.rest
