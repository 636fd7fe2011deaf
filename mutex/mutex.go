package mutex

import (
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/share"
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

	// Linger lets the process pass its lease to its next callers, without the server, until Linger has passed since it was granted; see
	// "Linger" in the package comment. Others wait for at most as much longer. At most a third of TTL, and 10 s. Not together with
	// NoRenewal. Default 0.
	Linger time.Duration

	// Yield is how long a release now and then leaves the key free for clients of other libraries; see "Other libraries" in the
	// package comment. From 1 ms to 10 s. Default 0: never.
	Yield time.Duration
}

const longestYield = 10 * time.Second

// Kind is the kind of a mutex in the events of hooks and for package admin.
const Kind lockkeeper.Kind = "mutex"

// Mutex is a lock on one name that one holder has at a time. It is immutable and safe for concurrent use.
type Mutex struct {
	_ [0]sync.Mutex // so that go vet reports copies

	lock  *keeper.Lock
	share *share.Sharing // nil without Options.Linger
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
		return nil, server.InvalidFor(Kind, name, "Yield %v is not between %v and %v", o.Yield, time.Millisecond, longestYield)
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
	if o.Linger != 0 {
		if m.share, err = share.New(lock, access.SharedBy(k), o.Linger, ""); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Name returns the name of the mutex.
func (m *Mutex) Name() string { return m.lock.Name() }

// Key returns the Redis key of the mutex, which identifies it among all locks; lockkeeper.LockAll needs it.
func (m *Mutex) Key() string { return m.lock.Key() }

// Shares reports whether Options.Linger is set, so that leases of one process can have the same token and fence.
func (m *Mutex) Shares() bool { return m.share != nil }

// Lock waits until the mutex is granted, until ctx ends, or until the keeper's retry policy gives up, and returns the lease.
// Package [lockkeeper] documents the errors.
func (m *Mutex) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	if m.share != nil {
		return access.Lease[lockkeeper.Lease](m.share.Acquire(ctx, 0, true))
	}
	return access.Lease[lockkeeper.Lease](m.lock.Acquire(ctx, keeper.Terms{}))
}

// TryLock acquires the mutex if it is free. It blocks for a round trip. The error is ErrNotAcquired if the mutex is held
// elsewhere; others are as for Lock.
func (m *Mutex) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	if m.share != nil {
		return access.Lease[lockkeeper.Lease](m.share.Acquire(ctx, 0, false))
	}
	return access.Lease[lockkeeper.Lease](m.lock.Try(ctx, keeper.Terms{}))
}

// Do calls fn while holding the mutex; see package [lockkeeper].
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	if m.share != nil {
		return m.share.Do(ctx, 0, fn)
	}
	return m.lock.Do(ctx, keeper.Terms{}, fn)
}

// Adopt makes a lease from a token that holds the mutex; see [lockkeeper.Lease.Token]. The error is ErrInvalid if Options.Linger is set.
func (m *Mutex) Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error) {
	if m.share != nil {
		return nil, m.share.AdoptError()
	}
	return access.Lease[lockkeeper.Lease](m.lock.Adopt(ctx, token))
}

// Holder returns who holds the mutex, in any process; held is false if the mutex is free. A lock of another library has a token
// and no fence. See [lockkeeper.Holder].
func (m *Mutex) Holder(ctx context.Context) (h lockkeeper.Holder, held bool, err error) {
	list, err := access.Holders[lockkeeper.Holder](views.Holders(ctx, m.lock.AtServer()))
	if err != nil || len(list) == 0 {
		return lockkeeper.Holder{}, false, err
	}
	return list[0], true, nil
}

// Waiters returns the processes that wait, in the order in which they are served: of each process one request is queued at the
// server, and its other callers wait in the process. See [lockkeeper.Holder].
func (m *Mutex) Waiters(ctx context.Context) ([]lockkeeper.Waiter, error) {
	return access.Waiters[lockkeeper.Waiter](views.Waiters(ctx, m.lock.AtServer()))
}
