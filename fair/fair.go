package fair

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/lockkeeper/lockkeeper/lua"
)

// Options are the settings of a fair lock. The zero value, and nil, mean the defaults. New copies them.
type Options struct {
	// TTL is how long a lease lasts without renewal, and so how long a crashed holder keeps others out. Whole
	// milliseconds, at least 10 ms; a fraction of one is dropped. Default 30 s.
	TTL time.Duration

	// NoRenewal makes leases end at their TTL unless they are extended. By default they are renewed in the background
	// at a third of it.
	NoRenewal bool

	// MaxLifetime ends renewal, so that a lease lasts no longer than this: against holders that hang. At least TTL; an
	// Extend beyond it is refused.
	// Default 0: no bound.
	MaxLifetime time.Duration
}

// Lock is a fair lock on one name. It is immutable and safe to share; each acquisition returns a lease of its own. It
// is not re-entrant: a holder that locks again waits for itself.
type Lock struct {
	lock *engine.Lock
}

// New returns the fair lock of a name. It sends nothing. The error is ErrInvalid, for a name that is empty, longer than
// 1024 bytes or breaks the cluster's hash tags, or an option out of range.
func New(k *lockkeeper.Keeper, name string, opts *Options) (*Lock, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TTL == 0 {
		o.TTL = lockkeeper.DefaultTTL
	}
	lock, err := access.EngineOf(k).Lock(engine.Spec{
		Scripts:     lua.Fair,
		Name:        name,
		TTL:         o.TTL,
		MaxLifetime: o.MaxLifetime,
		NoRenewal:   o.NoRenewal,
	})
	if err != nil {
		return nil, err
	}
	return &Lock{lock}, nil
}

// Lock stands in line until it is the caller's turn, and returns the lease. Only ctx bounds the wait; without a
// deadline it waits as long as it takes. Requests made one after the other are served in that order; the order of
// those made at the same time is that in which they reach the server.
//
// When ctx ends, Lock returns at once. Its error is the context's, and besides lockkeeper.ErrNotAcquired if it was not the
// caller's turn, or lockkeeper.ErrUnavailable if Redis has not been answering. It leaves the queue in the background, and a
// grant that arrives meanwhile is given back and goes to the next. ErrUnavailable alone means that the keeper's retry policy
// has given up, ErrClosed that the keeper was closed. Other errors are those of Redis, at once, if somebody has to change
// something. After any error nothing is held.
func (l *Lock) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Acquire(ctx, engine.Terms{}))
}

// TryLock takes the lock if it is free and nobody waits for it who is alive. It blocks for a round trip. It returns
// ErrNotAcquired if it is not the caller's turn; other errors are as for Lock.
func (l *Lock) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Try(ctx, engine.Terms{}))
}

// Do runs fn while holding the lock: it locks, calls fn with a context that ends when the lease is lost, and with the
// lease's fence, and releases, also if fn panics. It returns Lock's error, or fn's, joined with ErrLost if the lease
// was lost meanwhile. It releases with ctx: while Redis does not answer it waits
// until ctx ends, or the lease does.
func (l *Lock) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	h, err := l.lock.Acquire(ctx, engine.Terms{})
	if err != nil {
		return err
	}
	return h.Do(ctx, fn)
}

// Adopt makes a lease out of a token, in another process than the one that acquired it or after a restart, and extends
// it to the whole TTL. From then on two leases stand for one lock: the former holder must stop using its own, and it
// should have been acquired with NoRenewal. It blocks as Extend does, and then until replicas have the lease, if the
// keeper has ReplicaAck. The error is ErrLost if the token does not hold the lock any more. After any other error the
// lease is held by its former holder as before, or for longer.
func (l *Lock) Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Adopt(ctx, token))
}

// Holder is who holds the lock at present, in whichever process; held is false if nobody does. It disturbs nothing and
// blocks for a round trip. Errors are the context's, ErrClosed, and those of Redis.
func (l *Lock) Holder(ctx context.Context) (h lockkeeper.Holder, held bool, err error) {
	list, err := access.Holders[lockkeeper.Holder](l.lock.Holders(ctx))
	if err != nil || len(list) == 0 {
		return lockkeeper.Holder{}, false, err
	}
	return list[0], true, nil
}

// Waiters is who waits, in the order in which they will be served. It disturbs nothing; it blocks for a round trip for
// each 500 waiters, and of those who come or go meanwhile it may tell or not. Errors are as for Holder.
func (l *Lock) Waiters(ctx context.Context) ([]lockkeeper.Waiter, error) {
	return access.Waiters[lockkeeper.Waiter](l.lock.Waiters(ctx))
}
