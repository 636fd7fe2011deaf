package mutex

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/lockkeeper/lockkeeper/lua"
)

// Options are the settings of a mutex. The zero value, and nil, mean the defaults. New copies them.
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

// Mutex is a lock on one name. It is immutable and safe to share; each acquisition returns a lease of its own. It is
// not re-entrant: a holder that locks again waits for itself.
type Mutex struct {
	lock *engine.Lock
}

// New returns the mutex of a name. It sends nothing. The error is ErrInvalid, for a name that is empty, longer than
// 1024 bytes or breaks the cluster's hash tags, or an option out of range.
func New(k *lockkeeper.Keeper, name string, opts *Options) (*Mutex, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TTL == 0 {
		o.TTL = lockkeeper.DefaultTTL
	}
	lock, err := access.EngineOf(k).Lock(engine.Spec{
		Scripts:     lua.Mutex,
		Name:        name,
		PlainKey:    true,
		TTL:         o.TTL,
		MaxLifetime: o.MaxLifetime,
		NoRenewal:   o.NoRenewal,
		LocalQueue:  true,
	})
	if err != nil {
		return nil, err
	}
	return &Mutex{lock}, nil
}

// Lock waits until the mutex is the caller's, and returns the lease. Only ctx bounds the wait; without a deadline it
// waits as long as it takes.
//
// When ctx ends, Lock returns at once. Its error is the context's, and besides lockkeeper.ErrNotAcquired if another holds
// the mutex, or lockkeeper.ErrUnavailable if Redis has not been answering. It leaves the line in the background, and a
// grant that arrives meanwhile is given back. ErrUnavailable alone means that the keeper's retry policy has given up,
// ErrClosed that the keeper was closed. Other errors are those of Redis, at once, if somebody has to change something. After
// any error nothing is held.
func (m *Mutex) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](m.lock.Acquire(ctx, engine.Terms{}))
}

// TryLock takes the mutex if it is free, and does not wait for a holder: it blocks for a round trip. It returns
// ErrNotAcquired if another holds it; other errors are as for Lock.
func (m *Mutex) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](m.lock.Try(ctx, engine.Terms{}))
}

// Do runs fn while holding the mutex: it locks, calls fn with a context that ends when the lease is lost, and with the
// lease's fence, and releases, also if fn panics. It returns Lock's error, or fn's, joined with ErrLost if the lease
// was lost meanwhile. It releases with ctx: while Redis does not answer it waits
// until ctx ends, or the lease does.
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	h, err := m.lock.Acquire(ctx, engine.Terms{})
	if err != nil {
		return err
	}
	return h.Do(ctx, fn)
}

// Adopt makes a lease out of a token, in another process than the one that acquired it or after a restart, and extends
// it to the whole TTL. From then on two leases stand for one lock: the former holder must stop using its own, and it
// should have been acquired with NoRenewal. It blocks as Extend does, and then until replicas have the lease, if the
// keeper has ReplicaAck. The error is ErrLost if the token does not hold the mutex any more. After any other error the
// lease is held by its former holder as before, or for longer.
func (m *Mutex) Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](m.lock.Adopt(ctx, token))
}

// Holder is who holds the mutex at present, in whichever process; held is false if nobody does. The lease of another library
// has a token, and no fence. It disturbs nothing and blocks for a round trip. Errors are the context's, ErrClosed, and
// those of Redis.
func (m *Mutex) Holder(ctx context.Context) (h lockkeeper.Holder, held bool, err error) {
	list, err := access.Holders[lockkeeper.Holder](m.lock.Holders(ctx))
	if err != nil || len(list) == 0 {
		return lockkeeper.Holder{}, false, err
	}
	return list[0], true, nil
}
