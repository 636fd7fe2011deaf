package lua

// Codes that lead the replies; prelude.lua holds the same list.
const (
	Refused    = 0 // no: another holds it, or there is nothing to give up or to renew
	Granted    = 1 // the token holds it
	Waiting    = 2 // the token stands in line
	Tombstoned = 3 // the token was given up while its request was under way, and gets nothing any more
	Unknown    = 4 // the token neither holds nor waits
	Left       = 5 // the token stood in line and has left it
	Held       = 6 // the token was granted the lock earlier, and a message was sent to say so
	Conflict   = 7 // what was asked for would wait for another that waits for it
	AboveLimit = 8 // more was asked for than there can ever be
)
