package mutex

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/retainer"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/lua"
)

// Options are the settings of a mutex. Nil, and the zero value of each field, mean the defaults. New copies them.
type Options struct {
	// TTL is how long a lease lasts without renewal, and so how long a crashed holder keeps others out. From 10 ms to 365 days.
	// Default 30 s ([lockkeeper.DefaultTTL]).
	TTL time.Duration

	// NoRenewal makes a lease end after TTL unless it is extended. Default false: it is renewed after each third of TTL.
	NoRenewal bool

	// MaxLifetime bounds how long a lease lasts, however often it is renewed or extended. At least TTL. Default 0: no bound.
	MaxLifetime time.Duration

	// Retain makes the process keep the lease that a holder releases, for its next callers; see "Retained leases" in the package
	// comment. Not together with NoRenewal, MaxLifetime or Yield. Default false.
	Retain bool

	// Yield is how long a release now and then leaves the key free for clients of other libraries; see "Other libraries" in the
	// package comment. From 1 ms to 10 s. Default 0: never.
	Yield time.Duration
}

const longestYield = 10 * time.Second

// Kind is the kind of a mutex in the events of hooks and for package admin.
const Kind lockkeeper.Kind = "mutex"

// Mutex is a lock on one name that one holder has at a time. It is immutable and safe for concurrent use.
type Mutex struct {
	lock      *keeper.Lock
	retaining *retainer.Lock // nil without Options.Retain
}

// New returns the mutex of a name. It sends nothing. The error is ErrInvalid; see package [lockkeeper].
func New(k *lockkeeper.Keeper, name string, opts *Options) (*Mutex, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TTL == 0 {
		o.TTL = lockkeeper.DefaultTTL
	}
	switch {
	case o.Yield != 0 && (o.Yield < time.Millisecond || o.Yield > longestYield):
		return nil, server.Invalid("Yield %v is not between %v and %v", o.Yield, time.Millisecond, longestYield)
	case o.Yield != 0 && o.Retain:
		return nil, server.Invalid("Yield %v is set together with Retain, which keeps other libraries out; set only one of them", o.Yield)
	}
	lock, err := access.KeeperOf(k).Lock(keeper.Spec{
		Scripts:     lua.Mutex,
		Name:        name,
		TTL:         o.TTL,
		MaxLifetime: o.MaxLifetime,
		NoRenewal:   o.NoRenewal,
		LocalQueue:  true,
		Yield:       o.Yield,
	})
	if err != nil {
		return nil, err
	}
	m := &Mutex{lock: lock}
	if o.Retain {
		if m.retaining, err = retainer.New(lock, access.RetainedBy(k)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Name returns the name of the mutex.
func (m *Mutex) Name() string { return m.lock.Name() }

// Key returns the Redis key of the mutex, which identifies it among all locks; lockkeeper.LockAll needs it.
func (m *Mutex) Key() string { return m.lock.Key() }

// Retains reports whether Options.Retain is set, so that leases of one process can have the same token and fence.
func (m *Mutex) Retains() bool { return m.retaining != nil }

// Lock waits until the mutex is granted, until ctx ends, or until the keeper's retry policy gives up, and returns the lease.
// Package [lockkeeper] documents the errors.
func (m *Mutex) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	if m.retaining != nil {
		return access.Lease[lockkeeper.Lease](m.retaining.Acquire(ctx, true))
	}
	return access.Lease[lockkeeper.Lease](m.lock.Acquire(ctx, keeper.Terms{}))
}

// TryLock acquires the mutex if it is free. It blocks for a round trip. The error is ErrNotAcquired if the mutex is held
// elsewhere; others are as for Lock.
func (m *Mutex) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	if m.retaining != nil {
		return access.Lease[lockkeeper.Lease](m.retaining.Acquire(ctx, false))
	}
	return access.Lease[lockkeeper.Lease](m.lock.Try(ctx, keeper.Terms{}))
}

// Do calls fn while holding the mutex; see package [lockkeeper].
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	if m.retaining != nil {
		h, err := m.retaining.Acquire(ctx, true)
		if err != nil {
			return err
		}
		return lifecycle.Do(ctx, h, fn)
	}
	h, err := m.lock.Acquire(ctx, keeper.Terms{})
	if err != nil {
		return err
	}
	return h.Do(ctx, fn)
}

// Adopt makes a lease from a token that holds the mutex; see package [lockkeeper]. The token of a retained lease cannot be
// adopted; the error is then ErrInvalid.
func (m *Mutex) Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error) {
	if t, ok := protocol.ParseToken(token); ok && t.Flags == protocol.FlagRetained {
		return nil, server.Invalid("the token is of a lease that its process retains, for several holders in turn; acquire another lease instead")
	}
	return access.Lease[lockkeeper.Lease](m.lock.Adopt(ctx, token))
}

// Holder returns who holds the mutex, in any process; held is false if the mutex is free. A lock of another library has a token
// and no fence. See package [lockkeeper].
func (m *Mutex) Holder(ctx context.Context) (h lockkeeper.Holder, held bool, err error) {
	list, err := access.Holders[lockkeeper.Holder](views.Holders(ctx, m.lock.AtServer()))
	if err != nil || len(list) == 0 {
		return lockkeeper.Holder{}, false, err
	}
	return list[0], true, nil
}

// Waiters returns the processes that wait, in the order in which they are served: of each process one request is queued at the
// server, and its other callers wait in the process. See package [lockkeeper].
func (m *Mutex) Waiters(ctx context.Context) ([]lockkeeper.Waiter, error) {
	return access.Waiters[lockkeeper.Waiter](views.Waiters(ctx, m.lock.AtServer()))
}
