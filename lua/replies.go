package lua

// Codes that lead the replies; lib/constants.lua holds the same list.
const (
	Refused    = 0 // not granted, or there is no lease to release or to renew
	Granted    = 1 // the token has the lease
	Waiting    = 2 // the token is in the queue
	Tombstoned = 3 // the request was cancelled earlier, and is not granted any more
	Unknown    = 4 // the token has no lease and no place in the queue
	Left       = 5 // the token was in the queue and has left it
	Held       = 6 // the token was granted the lease earlier, and a message was sent to say so
	Conflict   = 7 // two upgrades would wait for each other
	AboveLimit = 8 // more permits are requested than there can ever be
	Recalled   = 9 // the lease was renewed, and somebody waits whom its process excludes as it retains it
)
