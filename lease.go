package lockkeeper

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/engine"
)

// Lease is a lock, permit or hold that was granted. It ends once and for good: released, or lost.
//
// A lease belongs to whoever has the value; it does not matter which goroutine releases it. It is safe for concurrent
// use. All methods are safe on nil: a nil lease is one that was released.
type Lease struct {
	handle engine.Handle
}

// Name is what is locked.
func (l *Lease) Name() string {
	if l == nil {
		return ""
	}
	return l.handle.Name()
}

// Token is the identity of the lease: what lies in Redis, and what Adopt takes in another process. Whoever knows it
// can release the lease.
func (l *Lease) Token() string {
	if l == nil {
		return ""
	}
	return l.handle.Token()
}

// Fence is the fencing token: larger than that of every lease of this name that was granted before, also if the
// server lost its data in between, as long as its clock was not set back at the same time. It stays the same for the
// life of the lease. A store that remembers the largest fence it has seen, at reads as well as at writes, and refuses
// smaller ones is safe from holders that do not know yet that they have lost the lock.
// (https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html)
func (l *Lease) Fence() uint64 {
	if l == nil {
		return 0
	}
	return l.handle.Fence()
}

// Deadline is until when the lease is believed if no renewal succeeds from now on. Its monotonic clock reading is what
// counts. It is before the moment at which the server ends the lease, and for a lease that has just come out of a
// queue it can be sooner than the ttl: the first renewal makes it whole.
func (l *Lease) Deadline() time.Time {
	if l == nil {
		return time.Time{}
	}
	return l.handle.Deadline()
}

// Done is closed when the lease is held no more, for whichever reason. Calling Done looks at the clock, as Err does: after
// the deadline it returns a channel that is closed. A channel that was returned before is closed by a timer; in a process
// that was paused past the deadline, code that waits on it may run for some milliseconds before the timer does, so call
// Err once more before a step that must not be late.
func (l *Lease) Done() <-chan struct{} {
	if l == nil {
		return closed
	}
	return l.handle.Done()
}

// Err is nil while the lease is held. After that it is an error that is ErrReleased, or one that is ErrLost and says how it was
// lost. It looks at the clock: in a process that was frozen past the deadline it tells the loss at once, even before
// the timers of the process have run.
func (l *Lease) Err() error {
	if l == nil {
		return ErrReleased
	}
	return l.handle.Err()
}

// Context returns a child of parent that also ends when the lease does; context.Cause is then the lease's Err,
// which is ErrReleased or ErrLost. Use it for the work that the lock guards.
//
// Whatever the context is asked (Err, Done, Value, context.Cause, or to be the parent of another) it looks at the clock, as
// Lease.Err does. A context that was derived from it earlier is asked without it, and ends by a timer, as a channel does
// that Done returned earlier.
//
// The lease keeps some hundred bytes for each context until its parent ends, and nothing if the parent never ends. So if a
// lease that is held for long is asked for many contexts whose parents live as long, derive a parent for each with
// context.WithCancel, and cancel it when the work is done.
func (l *Lease) Context(parent context.Context) context.Context {
	if l == nil {
		c, cancel := context.WithCancelCause(parent)
		cancel(ErrReleased)
		return c
	}
	return l.handle.Context(parent)
}

// Extend makes the lease end ttl from now, sooner or later than before; if the lease is renewed, renewals ask for the
// same ttl from then on. It blocks until the server has answered, until ctx ends, or until the retry policy gives up;
// before that, while another Extend of the same lease is under way.
//
// The error is ErrLost or ErrReleased if the lease is over, which it then stays: nothing is taken again. It is
// ErrInvalid for a ttl that cannot be, or that is more than is left of MaxLifetime. After any other error the lease is
// held as before, but if the request may have reached the server it is believed no longer than that would leave it. From
// the call on the lease is believed for no longer than ttl: if the answer does not come by then, it is lost.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	if l == nil {
		return ErrReleased
	}
	return l.handle.Extend(ctx, ttl)
}

// Release gives the lease back and lets the next one in. The lease's contexts end first; renewal has ended when
// Release returns.
//
// It blocks until the server has answered or ctx ends. If ctx has ended already, the lease is released all the same
// and Release waits for the answer for a second at the most, so that it can be deferred with the context that the
// work had. If no answer came, the release is repeated in the background until there is one or the lease is over.
//
// Releasing twice, or a nil lease, does nothing and returns nil. The error is ErrLost if the lease was lost before, so
// that what it guarded may have been disturbed; any other means that the server has not confirmed the release yet.
func (l *Lease) Release(ctx context.Context) error {
	if l == nil {
		return nil
	}
	return l.handle.Release(ctx)
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
