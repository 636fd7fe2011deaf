-- deaf: what is added to the score of a waiter's heartbeat (lib/heartbeats) whose keeper has lost its subscription. The waiter is granted
-- the lock in its turn all the same, without a message, and learns of it by its next heartbeat, as one with the flag s does. No range
-- finds such heartbeats when they have lapsed; admit does.
local DEAF = 3600000000000
