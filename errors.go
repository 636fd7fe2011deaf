package lockkeeper

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/internal/engine"
)

// The conditions that callers tell apart, with errors.Is. What Redis or the network has said is wrapped as well, and can
// be found with errors.As. The text of every error is one line and begins with the kind and the name of the lock.
//
// A call that ends because its context has ended always matches ctx.Err(), and besides either ErrNotAcquired or
// ErrUnavailable; it matches ctx.Err() alone if the context had ended before anything was asked.
var (
	// ErrNotAcquired: somebody else holds the lock, or is before the caller in line, and the server has said so not long
	// ago: in answer to this try or, if a context ended the wait, at the last heartbeat, which is no more than two heartbeat
	// periods ago, while no request has been waiting for its answer for longer than 100 ms. Before a deadline the server is
	// asked once more if it has not answered within a quarter of the period. So it may be concluded that Redis works and that
	// others are at work; a server that stopped answering since then cannot be known. (It is also the error of a caller that
	// is granted the lock just as its context ends.) Nothing is held and nothing is left behind at the server, or will be
	// after one more round trip. Trying again later may succeed.
	ErrNotAcquired = engine.ErrNotAcquired

	// ErrUnavailable: it is not known whether somebody holds the lock, because Redis gave no answer, or one that says that it
	// cannot serve at present. It wraps what is known of the cause: an error of the network, a timeout of the client, a
	// client without a free connection, silence until the context ended, or one of the replies LOADING, BUSY, READONLY,
	// MASTERDOWN, CLUSTERDOWN, NOREPLICAS, TRYAGAIN, and "max number of clients reached". With redlock it says that no
	// majority of the servers has answered.
	//
	// These are what Lockkeeper repeats by itself, until the context ends or the keeper's retry policy gives up, so trying
	// again helps once the outage is over. A call that took something leaves nothing behind: it is undone in the
	// background. Extend and Release may have run or may run yet. A lease that was lost because renewals were not answered
	// matches ErrLost and this.
	//
	// Other replies come through as themselves, at once, and match none of these: somebody has to change something first.
	// Examples are NOPERM, NOAUTH, WRONGPASS, OOM, MISCONF and WRONGTYPE.
	ErrUnavailable = engine.ErrUnavailable

	// ErrLost: the lease ended without having been released: the server does not know its token any more, or its
	// deadline passed without a renewal. Another may hold the lock by now. A lost lease stays lost.
	ErrLost = engine.ErrLost

	// ErrReleased: the lease was given back, by Release or by the keeper's Close. Compare with errors.Is: the error of a
	// lease names its lock as well.
	ErrReleased = engine.ErrReleased

	// ErrClosed: the keeper was closed. Waiting callers get it too. Nothing is held.
	ErrClosed = engine.ErrClosed

	// ErrInvalid: an argument breaks a rule; the text names the option, the value and the rule. No command was sent.
	ErrInvalid = engine.ErrInvalid
)

// NotAcknowledgedError is the error, to be found with errors.As, of a call whose lease was granted but was not acknowledged
// by replicas within Options.ReplicaAck.Timeout. The grant was undone, or will be after one more round trip: nothing is held.
//
// It is not ErrNotAcquired: nobody else holds the lock. Trying again may succeed once the replicas are back.
type NotAcknowledgedError struct {
	Replicas int   // how many replicas acknowledged the grant
	Wanted   int   // how many had to
	Local    bool  // the primary has the grant on disk, or did not have to
	Err      error // what went wrong if it was not the timeout; nil otherwise
}

// Error implements error.
func (e *NotAcknowledgedError) Error() string {
	text := fmt.Sprintf("%d of %d replicas have acknowledged it", e.Replicas, e.Wanted)
	switch {
	case e.Err != nil:
		text += ": " + e.Err.Error()
	case !e.Local:
		text += ", and the primary has not written it to its disk"
	}
	return text
}

// Unwrap returns Err.
func (e *NotAcknowledgedError) Unwrap() error { return e.Err }
