package lockkeeper

import "github.com/lockkeeper/lockkeeper/internal/engine"

// The conditions that callers tell apart, with errors.Is. An error of Redis or of the network is none of these; it
// comes through wrapped, as itself.
var (
	// ErrNotAcquired: the lock is with somebody else: a try found it taken, or a wait was ended by its context, which
	// the error then is as well. Nothing is held and nothing is left behind at the server, or will be after one more
	// round trip. Trying again later may succeed.
	ErrNotAcquired = engine.ErrNotAcquired

	// ErrLost: the lease ended without having been released: the server does not know its token any more, or its
	// deadline passed without a renewal. Another may hold the lock by now. A lost lease stays lost.
	ErrLost = engine.ErrLost

	// ErrReleased: the lease was given back, by Release or by the keeper's Close.
	ErrReleased = engine.ErrReleased

	// ErrClosed: the keeper was closed. Waiting callers get it too. Nothing is held.
	ErrClosed = engine.ErrClosed

	// ErrInvalid: an argument breaks a rule; the text names the option, the value and the rule. No command was sent.
	ErrInvalid = engine.ErrInvalid
)

// NotAcknowledgedError is returned, to be found with errors.As, when a lease was granted, but replicas did not have the
// grant in the time that Options.Acknowledge gives them. The grant was undone, or will be after one more round trip:
// nothing is held. Its fields:
//
//	Replicas int   // how many have acknowledged it
//	Wanted   int   // how many had to
//	Local    bool  // the primary has it on its disk, or did not have to
//	Err      error // what went wrong, if it was something else than time; Unwrap returns it
//
// It is not ErrNotAcquired: nobody else has the lock. To try again is of use once the replicas are back.
type NotAcknowledgedError = engine.NotAcknowledged
