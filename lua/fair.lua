-- fair: the policy of a lock that goes to whoever came first. A newcomer may take it when it is free and nobody waits.

-- part: base
-- include: single.base

-- part: take
local open = call('EXISTS', queue) == 0
-- include: single.take

-- part: drop
-- include: single.drop

-- part: extend
-- include: single.extend

-- part: rest
-- include: single.rest
