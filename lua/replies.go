package lua

// The codes that lead the replies. lib/constants.lua has the same lists.
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
)

// Undecided is the reply of a fast script that has written nothing, because the general script has to decide. One that has decided replies
// its own: Fast.Acquire a fence, or minus the ms until it may be granted; the others a code of release or renew.
const Undecided = 0

// What is added to the code of a release.
const (
	ReleaseMore       = 16 // the script has reached its bound, and there is more to admit: send a Heartbeat without tokens
	ReleaseQueueEmpty = 32 // nobody waits
)

// RenewConverted is added to the code of a renewal by a fast script if the lease was converted: it reads, or writes, other than its token says.
const RenewConverted = 16

// The notes in the replies of Acquire, Allow and Limit are a sum of these.
const (
	NoteMore   = 1 // as ReleaseMore
	NoteLimits = 2 // the limits are others from now on
)
