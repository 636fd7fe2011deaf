package fair

import (
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/lua"
)

// Options are the settings of a fair lock. Nil, and the zero value of each field, mean the defaults. New copies them.
type Options struct {
	// TTL is how long a lease lasts without renewal, and so how long a crashed holder keeps others out. From 10 ms to 365 days.
	// Default 30 s ([lockkeeper.DefaultTTL]).
	TTL time.Duration

	// NoRenewal makes a lease end after TTL unless it is extended. Default false: it is renewed after each third of TTL.
	NoRenewal bool

	// MaxLifetime bounds how long a lease lasts, however often it is renewed or extended. At least TTL. Default 0: no bound.
	MaxLifetime time.Duration
}

// Kind is the kind of a fair lock in the events of hooks and for package admin.
const Kind lockkeeper.Kind = "fair"

// Lock is a fair lock on one name. It is immutable and safe for concurrent use.
type Lock struct {
	_ [0]sync.Mutex // so that go vet reports copies

	lock *keeper.Lock
}

// New returns the fair lock of a name. It sends nothing. The error is ErrInvalid; see package [lockkeeper].
func New(k *lockkeeper.Keeper, name string, opts *Options) (*Lock, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TTL == 0 {
		o.TTL = lockkeeper.DefaultTTL
	}
	lock, err := access.KeeperOf(k).Lock(keeper.Spec{
		Scripts:     lua.Fair,
		Name:        name,
		TTL:         o.TTL,
		MaxLifetime: o.MaxLifetime,
		NoRenewal:   o.NoRenewal,
	})
	if err != nil {
		return nil, err
	}
	return &Lock{lock: lock}, nil
}

// Name returns the name of the lock.
func (l *Lock) Name() string { return l.lock.Name() }

// Key returns the Redis key of the lock, which identifies it among all locks; lockkeeper.LockAll needs it.
func (l *Lock) Key() string { return l.lock.Key() }

// Shares returns false: each lease has a token and a fence of its own. Package election asks for it.
func (l *Lock) Shares() bool { return false }

// Lock queues until it is the caller's turn, until ctx ends, or until the keeper's retry policy gives up, and returns the lease.
// Requests are granted in the order in which the server queued them. Package [lockkeeper] documents the errors.
func (l *Lock) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Acquire(ctx, keeper.Terms{}))
}

// TryLock acquires the lock if it is free and no live waiter is queued. It blocks for a round trip. The error is
// ErrNotAcquired if it is not the caller's turn; others are as for Lock.
func (l *Lock) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Try(ctx, keeper.Terms{}))
}

// Do calls fn while holding the lock; see package [lockkeeper].
func (l *Lock) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return l.lock.Do(ctx, keeper.Terms{}, fn)
}

// Adopt makes a lease from a token that holds the lock; see [lockkeeper.Lease.Token].
func (l *Lock) Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Adopt(ctx, token))
}

// Holder returns who holds the lock, in any process; held is false if the lock is free. See [lockkeeper.Holder].
func (l *Lock) Holder(ctx context.Context) (h lockkeeper.Holder, held bool, err error) {
	list, err := access.Holders[lockkeeper.Holder](views.Holders(ctx, l.lock.AtServer()))
	if err != nil || len(list) == 0 {
		return lockkeeper.Holder{}, false, err
	}
	return list[0], true, nil
}

// Waiters returns who waits, in the order in which they will be granted the lock; see [lockkeeper.Holder].
func (l *Lock) Waiters(ctx context.Context) ([]lockkeeper.Waiter, error) {
	return access.Waiters[lockkeeper.Waiter](views.Waiters(ctx, l.lock.AtServer()))
}
