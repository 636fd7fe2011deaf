package lockkeeper

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
)

// Lease is a lock or permit that was granted. It ends once: it is released, or it is lost.
//
// A Lease must be released: it is renewed until then, and one that was forgotten keeps others out until the keeper is closed
// ([Hooks.Leaked]). Any goroutine may use and release it. It is safe for concurrent use. All methods may be called on a nil *Lease, which
// behaves like a lease that has been released.
type Lease struct {
	_ [0]sync.Mutex // so that go vet reports copies

	handle lifecycle.Handle
}

// Name returns the name of the lock.
func (l *Lease) Name() string {
	if l == nil {
		return ""
	}
	return l.handle.Name()
}

// Token returns the identity of the lease: the value that is stored in Redis. Anyone who knows the token can release the lease.
//
// The Adopt method of a lock makes a lease from the token of one that is held, in another process or after a restart, and
// extends it to the whole TTL. Both leases then refer to the same grant. So the former holder must stop using its own, and should
// have acquired it with NoRenewal. It must not close its keeper before its own lease has ended, since [Keeper.Close] releases the
// grant for both.
//
// Adopt blocks as [Lease.Extend] does and then, if the keeper has [Options.ReplicaAck], until replicas have the lease. The
// error matches [ErrLost] if the token no longer holds the lock. After any other error the former holder holds the lease as
// before, or for longer.
func (l *Lease) Token() string {
	if l == nil {
		return ""
	}
	return l.handle.Token()
}

// Fence returns the fencing token: a number larger than the fence of every earlier lease of this name. This holds even after
// the server has lost its data, unless its clock was set back at the same time. It does not change during the life of the
// lease, but for Upgrade and Downgrade of a read-write lock, which raise it. Callers of a process that share a lease (Linger in
// the Options of mutex, rwlock and semaphore) have the same fence.
//
// A store that remembers the largest fence that it has seen, in reads and writes, and refuses smaller ones, is protected from
// holders that have lost the lock without knowing it yet.
// (https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html)
func (l *Lease) Fence() uint64 {
	if l == nil {
		return 0
	}
	return l.handle.Fence()
}

// Deadline returns when the lease is lost if no renewal succeeds until then. Compare it with time.Now; its monotonic clock
// reading is what counts. The server ends the lease later than this. Until its first renewal, a lease that was granted after a
// wait in a queue can have a deadline sooner than the whole TTL from the grant.
func (l *Lease) Deadline() time.Time {
	if l == nil {
		return time.Time{}
	}
	return l.handle.Deadline()
}

// Done returns a channel that is closed when the lease ends, for whatever reason. Done checks the deadline, as Err does:
// after the deadline it returns a closed channel. A channel that was returned earlier is closed by a timer. If the process
// was paused past the deadline, that timer can fire some milliseconds after the process resumes, so call Err again before
// a step that must not run without the lease.
func (l *Lease) Done() <-chan struct{} {
	if l == nil {
		return closed
	}
	return l.handle.Done()
}

// Err returns nil while the lease is held, and afterwards an error that matches ErrReleased or ErrLost; the latter says how
// the lease was lost. Err checks the deadline itself, so after a pause of the process it reports the loss at once, even
// before the timers of the process have fired.
func (l *Lease) Err() error {
	if l == nil {
		return ErrReleased
	}
	return l.handle.Err()
}

// Context returns a child of parent that is also canceled when the lease ends; context.Cause then returns an error that
// matches ErrReleased or ErrLost. Use it for the work that the lock protects.
//
// Every method of the context, context.Cause, and deriving another context from it check the lease's deadline, as Err
// does. A context that was derived earlier does not check it, and is canceled by a timer, like a channel that Done
// returned earlier.
//
// The lease keeps some hundred bytes for each context until its parent ends, and nothing if the parent never ends. If you
// create many contexts of a long-lived lease whose parents live as long, derive a parent for each with context.WithCancel
// and cancel it when the work is done.
func (l *Lease) Context(parent context.Context) context.Context {
	if l == nil {
		c, cancel := context.WithCancelCause(parent)
		cancel(ErrReleased)
		return c
	}
	return lifecycle.ContextFor(l.handle, parent, l)
}

// LeaseFromContext returns the lease that ctx belongs to: ctx, or a context that it was derived from, was returned by
// [Lease.Context] or passed to a function by Do. If there are several such leases, it returns the innermost; if there is none,
// it returns nil, whose methods may be called.
func LeaseFromContext(ctx context.Context) *Lease {
	user, h := lifecycle.LeaseOf(ctx)
	switch user := user.(type) {
	case *Lease:
		return user
	case *Leases:
		return user.leases[len(user.leases)-1]
	}
	if h == nil {
		return nil
	}
	return &Lease{handle: h}
}

// Extend makes the lease last for at least ttl from now, and never less than before. Renewals, if the lease has any, request
// that ttl from then on, unless they request a longer one already. Extend blocks until the server has answered, until ctx ends, or
// until the retry policy gives up.
//
// The error matches ErrLost or ErrReleased if the lease has ended; Extend never acquires it again. It matches ErrInvalid if ttl
// is out of range or exceeds what is left of MaxLifetime, or if the lock has Linger, since other callers of the process may share the
// lease. After any other error the lease is still held, and its deadline and renewals are as before. If the server has received the
// request nevertheless, a lease that is not released, because the process crashes, lasts for ttl there.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	if l == nil {
		return ErrReleased
	}
	defer runtime.KeepAlive(l) // or it could be reported as leaked during the call
	return l.handle.Extend(ctx, ttl)
}

// Release ends the lease and lets the next waiter acquire the lock. It first cancels the lease's contexts. When it
// returns, the lease is no longer renewed.
//
// Release blocks until the server has answered, ctx ends, or [Keeper.Close] waits no longer. If ctx has ended before the call,
// Release is sent nevertheless and waits for the answer for at most a second, so it can be deferred with the context of the
// work. If there was no answer, the release is retried in the background until there is one or the lease has expired.
//
// Releasing a lease again, or a nil lease, does nothing and returns nil. The error matches ErrLost if the lease was lost before
// the call: another holder may have used what it protected. Any other error means that the server has not confirmed the release
// yet. The lease has ended for this process in any case.
func (l *Lease) Release(ctx context.Context) error {
	if l == nil {
		return nil
	}
	defer runtime.KeepAlive(l) // as in Extend
	_ = ctx.Err()              // a nil ctx panics now, and not when the lease has ended here and is about to be released
	return l.handle.Release(ctx)
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
