-- RETRIES is how many of the first waiters are told to retry when capacity may free up by itself: few, so that a long queue does
-- not poll.
local RETRIES = 3
