package lockkeeper

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/internal/server"
)

// The errors to check for with errors.Is. Errors of Redis and of the network are wrapped as well; find them with errors.As.
// The text of an error is one line. It begins with "lockkeeper: " and, if it is about one lock, with the kind and the name of the lock.
//
// The error of a call that ended because its context ended matches ctx.Err() and context.Cause(ctx), and also ErrNotAcquired or
// ErrUnavailable, unless the context had ended before the first request was sent. The cause may match errors of this package itself:
// that of the context of a lost lease matches ErrLost.
var (
	// ErrNotAcquired means that the lock is held elsewhere, or others are queued before the caller. If ctx ended the wait,
	// errors.Is also matches ctx.Err().
	//
	// Nothing is held, and nothing remains at the server after one more round trip. A later call may succeed. A caller whose
	// grant arrives just as ctx ends gets this error, too. The error does not say who holds the lock, since the server's reply
	// does not: call Holder or Holders of the lock.
	//
	// The error means that Redis was working: it is the server's reply to this TryLock or, if ctx ended the wait, the server (of a
	// Cluster the node that has the name) has answered the keeper at most two HeartbeatIntervals ago, whatever it was asked, and no
	// request sent since has failed, or been unanswered for 100 ms or more. (Shortly before a deadline one more request is sent if
	// the last answer is older than a quarter of the interval.)
	ErrNotAcquired = server.ErrNotAcquired

	// ErrUnavailable means that Redis did not answer, or answered that it cannot serve requests at present, so it is not known
	// whether the lock is held. It wraps the cause: a network error, a timeout of the client, no free connection, no answer
	// until ctx ended, or one of the replies LOADING, BUSY, READONLY, MASTERDOWN, CLUSTERDOWN, NOREPLICAS, TRYAGAIN and "max
	// number of clients reached". With redlock it means that no majority of the servers answered.
	//
	// Lockkeeper itself retries after these errors until ctx ends or the keeper's RetryPolicy gives up, so calling again helps
	// once the outage is over. If a failed acquisition may have been granted, it is released in the background. A failed Extend
	// or Release may have run or may still run. The error of a lease that was lost because renewals were not answered matches
	// both ErrLost and ErrUnavailable.
	//
	// Other error replies are returned unchanged and at once, and match none of the errors here, because they require
	// intervention: for example NOPERM, NOAUTH, WRONGPASS, OOM, MISCONF and WRONGTYPE. So are MOVED and ASK if the client is that of a single
	// server: it does not go to the other nodes of a Cluster.
	ErrUnavailable = server.ErrUnavailable

	// ErrLost means that the lease ended without a release: the server no longer knows its token, or its deadline passed
	// without a renewal. The lock may be held elsewhere by now. A lost lease stays lost.
	ErrLost = server.ErrLost

	// ErrReleased means that the lease was released, by Release or by Keeper.Close.
	ErrReleased = server.ErrReleased

	// ErrClosed means that the keeper was closed, before or during the call. Nothing is held.
	ErrClosed = server.ErrClosed

	// ErrInvalid means that an argument is not valid. The text names the option, its value and the rule that it violates.
	// Nothing is held, and unless the method says otherwise, no command was sent.
	ErrInvalid = server.ErrInvalid
)

// NotAcknowledgedError is the error of a call that the primary granted its lease, but too few replicas acknowledged within
// Options.ReplicaAck.Timeout. Find it with errors.As. The grant is undone, at the latest after one more round trip, so nothing
// is held.
//
// It does not match ErrNotAcquired, since the lock is not held elsewhere. A later call may succeed once the replicas are
// connected again.
type NotAcknowledgedError struct {
	Replicas int   // the number of replicas that acknowledged the grant
	Wanted   int   // the number that was required
	Local    bool  // the primary has the grant on disk, or Fsync is not set
	Err      error // the cause, or nil if the timeout passed
}

// Error implements error.
func (e *NotAcknowledgedError) Error() string {
	text := fmt.Sprintf("%d of %d replicas have acknowledged the grant", e.Replicas, e.Wanted)
	switch {
	case e.Err != nil:
		text += ": " + e.Err.Error()
	case !e.Local:
		text += ", and the primary has not written it to disk"
	}
	return text
}

// Unwrap returns Err.
func (e *NotAcknowledgedError) Unwrap() error { return e.Err }

// BrokenError says that a lease or a waiting request was ended with admin.Break, by whom and why. Find it with errors.As. The error
// of a lease matches ErrLost as well, that of a request ErrNotAcquired.
type BrokenError struct {
	Reason string // of admin.BreakOptions
	By     string // of admin.BreakOptions
}

// Error implements error.
func (e *BrokenError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("broken by %q", e.By)
	}
	return fmt.Sprintf("broken by %q: %s", e.By, e.Reason)
}
