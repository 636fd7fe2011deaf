package lockkeeper

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Leases are the leases of several locks that LockAll has acquired. They are held together: if one of them is lost, Err, Done and
// the contexts report the loss. The others are then still held, and renewed, until Release, so that they protect the work
// until it has stopped.
//
// Leases must be released. It is safe for concurrent use. All methods may be called on a nil *Leases, which behaves like leases that
// have been released.
type Leases struct {
	_ [0]sync.Mutex // so that go vet reports copies

	keys   []string // of the lockers
	leases []*Lease // of the lockers; while they are being acquired, nil for those that are not yet
	group  *lifecycle.Group
}

// Of returns the lease of one of the lockers that were given to LockAll, for example for its fence: there is no fence of several
// locks. It returns nil, whose methods may be called, for any other locker.
func (ls *Leases) Of(locker Locker) *Lease {
	if ls == nil || server.IsNil(locker) {
		return nil
	}
	if i := slices.Index(ls.keys, locker.Key()); i >= 0 {
		return ls.leases[i]
	}
	return nil
}

// All returns the leases in the order in which their lockers were given to LockAll.
func (ls *Leases) All() []*Lease {
	if ls == nil {
		return nil
	}
	return slices.Clone(ls.leases)
}

// Deadline returns when the first of the leases is lost if no renewal succeeds until then; see [Lease.Deadline].
func (ls *Leases) Deadline() time.Time {
	if ls == nil {
		return time.Time{}
	}
	return slices.MinFunc(ls.leases, func(a, b *Lease) int { return a.Deadline().Compare(b.Deadline()) }).Deadline()
}

// Err returns nil while all leases are held. Afterwards its error matches ErrLost if one of them was lost, and otherwise
// ErrReleased. It checks the deadlines, as [Lease.Err] does.
func (ls *Leases) Err() error {
	if ls == nil {
		return ErrReleased
	}
	return ls.ended()
}

// Done returns a channel that is closed when the first of the leases ends, for whatever reason; see [Lease.Done].
func (ls *Leases) Done() <-chan struct{} {
	if ls == nil {
		return closed
	}
	return ls.group.Done()
}

// Context returns a child of parent that is also canceled when the first of the leases ends; context.Cause then returns its error.
// [LeaseFromContext] returns one of the leases. Otherwise it is as [Lease.Context].
func (ls *Leases) Context(parent context.Context) context.Context {
	if ls == nil {
		return (*Lease)(nil).Context(parent)
	}
	return ls.group.ContextFor(parent, ls)
}

// Extend makes every lease last for at least ttl from now; see [Lease.Extend]. It blocks until all requests have ended, which are made at the same
// time. If some fail, the error wraps those of all of them, and the others are extended.
func (ls *Leases) Extend(ctx context.Context, ttl time.Duration) error {
	if ls == nil {
		return ErrReleased
	}
	return ls.each(func(l *Lease) error { return l.Extend(ctx, ttl) })
}

// Release releases all leases at the same time, and blocks until all are released; see [Lease.Release], which says for how long. The
// error wraps those of all leases whose release has failed: ErrLost if one of them was lost before.
func (ls *Leases) Release(ctx context.Context) error {
	if ls == nil {
		return nil
	}
	return ls.each(func(l *Lease) error { return l.Release(ctx) })
}

// ended returns nil if all leases that there are are held, and else why one is not.
func (ls *Leases) ended() (err error) {
	for _, l := range ls.leases {
		if l == nil {
			continue
		}
		switch e := l.Err(); {
		case errors.Is(e, ErrLost):
			return e
		case err == nil:
			err = e
		}
	}
	return err
}

// each calls f for all leases that there are, at the same time, and returns its errors.
func (ls *Leases) each(f func(*Lease) error) error {
	errs := make([]error, len(ls.leases))
	var calls sync.WaitGroup
	for i, l := range ls.leases {
		if l != nil {
			calls.Go(func() { errs[i] = f(l) })
		}
	}
	calls.Wait()
	return server.Join(errs...)
}
