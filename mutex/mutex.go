package mutex

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/lockkeeper/lockkeeper/lua"
)

// Options are the settings of a mutex. Package [lockkeeper] documents the fields.
type Options struct {
	TTL         time.Duration
	NoRenewal   bool
	MaxLifetime time.Duration
}

// Mutex is a lock on one name that one holder has at a time. It is immutable and safe for concurrent use.
type Mutex struct {
	lock *engine.Lock
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

// Name returns the name of the mutex.
func (m *Mutex) Name() string { return m.lock.Name() }

// Lock waits until the mutex is granted, until ctx ends, or until the keeper's retry policy gives up, and returns the lease.
// Package [lockkeeper] documents the errors.
func (m *Mutex) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](m.lock.Acquire(ctx, engine.Terms{}))
}

// TryLock acquires the mutex if it is free. It blocks for a round trip. The error is ErrNotAcquired if it is held
// elsewhere; others are as for Lock.
func (m *Mutex) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](m.lock.Try(ctx, engine.Terms{}))
}

// Do calls fn while holding the mutex; see package [lockkeeper].
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	h, err := m.lock.Acquire(ctx, engine.Terms{})
	if err != nil {
		return err
	}
	return h.Do(ctx, fn)
}

// Adopt makes a lease from a token that holds the mutex; see package [lockkeeper].
func (m *Mutex) Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](m.lock.Adopt(ctx, token))
}

// Holder returns who holds the mutex, in any process; held is false if it is free. The lease of another library has a
// token and no fence. See package [lockkeeper].
func (m *Mutex) Holder(ctx context.Context) (h lockkeeper.Holder, held bool, err error) {
	list, err := access.Holders[lockkeeper.Holder](m.lock.Holders(ctx))
	if err != nil || len(list) == 0 {
		return lockkeeper.Holder{}, false, err
	}
	return list[0], true, nil
}
