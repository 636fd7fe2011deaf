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

// Options are the settings of a mutex. Package [lockkeeper] documents the first three fields.
type Options struct {
	TTL         time.Duration
	NoRenewal   bool
	MaxLifetime time.Duration

	// Retain makes the process keep the lease at the server when its holder releases the mutex. The process then grants the
	// mutex to its own callers, one after the other, without asking the server, until another process asks for the mutex. Use it
	// where one process takes the same mutex again and again. Default false.
	//
	// One caller holds the mutex at a time, as always, and the waiting callers of this process are served in order. The leases
	// that they get are turns of one lease at the server: they have its token, deadline and fence, and a turn is lost if that
	// lease is lost. So a store must accept equal fences, and cannot reject a late write of an earlier turn of the same process:
	// a holder must not release the mutex before its writes have been answered. If that cannot be ensured, do not set Retain.
	//
	// The TTL of the lease at the server is the shorter of TTL and 5 s. The lease is renewed while it is used, and released when
	// it has not been used for that time.
	//
	// Another process that waits makes the server recall the lease: the current holder keeps the mutex until it calls Release,
	// which then releases the lease at the server, and no further turn is granted. If the process is frozen or cut off, the
	// others wait until the lease has expired. Without a subscription no turns are granted. TryLock of another process fails and
	// recalls the lease, so that the next TryLock succeeds if nobody holds the mutex. TryLock of this process does not ask the
	// server while the mutex is held in this process.
	//
	// After a recall the process retains no lease of the name for about nine times as long as the recall took, at least 20 ms and
	// at most a minute, and afterwards only if it takes the mutex about 20 times as often as it is recalled. A keeper retains
	// leases of at most 10,000 names, those that it used last.
	//
	// Other libraries that use the same key cannot recall a lease: for them the mutex is held until it has not been used for the
	// lease's TTL. Do not set Retain where they contend. Retain cannot be set together with NoRenewal, MaxLifetime or Yield.
	Retain bool

	// Yield is for a key that clients of other libraries use as well. They ask for it now and then, and while callers of Lockkeeper
	// wait, who are granted it in the same step in which it is released, they hardly ever find it free. If Yield is set, a release
	// leaves the key free for so long, unless one has done so within nine times as long before. During that time no process that uses
	// Lockkeeper is granted the mutex, whatever its options, and TryLock fails with ErrNotAcquired. So others have it at least once in
	// ten times Yield if that is their longest retry delay, and at most a tenth of the time is lost.
	//
	// Set it in all processes, to the longest retry delay of the others, such as 250 ms for redsync. HeartbeatInterval of the keeper is
	// after how long the mutex is asked for again after another library's holder. From 1 ms to 10 s. Default 0: never.
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
