package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/quorum"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/lua"
)

// defaultMaxRetryDelay is the default of Options.MaxRetryDelay.
const defaultMaxRetryDelay = 250 * time.Millisecond

// Options are the settings of a lock. Nil, and the zero value of each field, mean the defaults. New copies them.
type Options struct {
	// TTL is how long a lease lasts without renewal, and so how long a crashed holder keeps others out. From 10 ms to 365 days.
	// Default 30 s ([lockkeeper.DefaultTTL]).
	TTL time.Duration

	// NoRenewal makes a lease end after TTL unless it is extended; servers that did not grant it at first are not asked again.
	// Default false: it is renewed after each third of TTL.
	NoRenewal bool

	// MaxLifetime bounds how long a lease lasts, however often it is renewed or extended. At least TTL. Default 0: no bound.
	MaxLifetime time.Duration

	// ServerTimeout is how long, at each step, a call waits for the answers of servers that a majority needs. From 1 ms to half
	// of TTL. Default a tenth of TTL, but at most 500 ms.
	ServerTimeout time.Duration

	// MaxRetryDelay bounds the average pause between two attempts while another holder has the lock. From 10 ms to 1 h. Default
	// 250 ms.
	//
	// The average grows from 10 ms; each pause is varied at random by up to half.
	MaxRetryDelay time.Duration

	// MinUptime is how long a server must have run before its answers count; see "Servers that restart" in the package comment.
	// From TTL to 365 days. Default 0: a server counts at once.
	MinUptime time.Duration
}

// Kind is the kind of a redlock in the events of hooks and for package admin.
const Kind lockkeeper.Kind = "redlock"

// Lock is a lock on one name at the majority of several servers. It is immutable and safe for concurrent use.
type Lock struct {
	_ [0]sync.Mutex // so that go vet reports copies

	lock *quorum.Majority
}

// New returns the lock of a name on the servers of these keepers. It sends nothing. The error is ErrInvalid; see package
// [lockkeeper]. It is also ErrInvalid for an even number of keepers, and for a keeper that is nil, is listed twice or has
// ReplicaAck.
//
// Each keeper needs a server of its own. Lock, TryLock, Do and Adopt compare the run_id in the servers' INFO and return
// ErrInvalid if two keepers use the same server. The first call waits for this check, for at most ServerTimeout; later calls
// repeat it in the background, once a minute. A server that does not answer, or does not report its run_id, for example because
// the user may not run INFO, is not compared; a missing run_id is logged once per keeper.
//
// The lock uses the first keeper's retry policy, hooks and local queue. Events at single servers are not passed to hooks.
func New(keepers []*lockkeeper.Keeper, name string, opts *Options) (*Lock, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TTL == 0 {
		o.TTL = lockkeeper.DefaultTTL
	}
	if o.MaxRetryDelay == 0 {
		o.MaxRetryDelay = defaultMaxRetryDelay
	}
	var servers []*keeper.Keeper
	ids := make([]string, len(keepers))
	for i, k := range keepers {
		servers = append(servers, access.KeeperOf(k))
		if k != nil {
			ids[i] = k.ID()
		}
	}
	lock, err := quorum.New(quorum.Spec{
		Spec: keeper.Spec{
			Scripts:     lua.Redlock,
			Name:        name,
			TTL:         o.TTL,
			MaxLifetime: o.MaxLifetime,
			NoRenewal:   o.NoRenewal,
		},
		Keepers:       servers,
		ServerTimeout: o.ServerTimeout,
		MaxRetryDelay: o.MaxRetryDelay,
		MinUptime:     o.MinUptime,
		Fail:          func(answers []error, causes ...error) error { return newError(name, ids, answers, causes) },
	})
	if err != nil {
		return nil, err
	}
	return &Lock{lock: lock}, nil
}

// Name returns the name of the lock.
func (l *Lock) Name() string { return l.lock.Name() }

// Key returns the Redis key of the lock, at each server, which identifies it among all locks; lockkeeper.LockAll needs it.
func (l *Lock) Key() string { return l.lock.Key() }

// Shares returns false: each lease has a token and a fence of its own. Package election asks for it.
func (l *Lock) Shares() bool { return false }

// Lock waits until a majority of the servers has granted the lock, until ctx ends, or until the retry policy of the first
// keeper gives up, and returns the lease. Package [lockkeeper] documents the errors. Here ErrNotAcquired means that a majority
// of the servers has answered recently and only other holders prevented a majority, ErrUnavailable that no majority of the
// servers answers, and ErrClosed that one of the keepers was closed. All errors but ErrInvalid are an *Error, with the answer
// of each server.
func (l *Lock) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Acquire(ctx))
}

// TryLock acquires the lock if it is free. It blocks for a round trip or, if too few servers answer, for up to three attempts,
// each step of which takes up to ServerTimeout. The error is ErrNotAcquired if a majority of the servers answered and some
// refused; others are as for Lock. If several callers try at the same moment, it is possible that none succeeds.
func (l *Lock) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Try(ctx))
}

// Do calls fn while holding the lock; see package [lockkeeper].
func (l *Lock) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return l.lock.Do(ctx, fn)
}

// Adopt makes a lease from a token that holds the lock at a majority of the servers; see [lockkeeper.Lease.Token]. The fence is
// that of the former lease, or a larger one that a server generated when it granted its part later. Adopt blocks until a
// majority has answered, for at most ServerTimeout for each of two steps. The error is ErrLost if a majority no longer has the
// token, and ErrUnavailable if too few servers answered. After an error each server keeps what it has of the token, except that a
// keeper which is closed within microseconds of its server's reply releases that part, because Close releases all leases that it finds.
func (l *Lock) Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Adopt(ctx, token))
}

// Holder returns the lease that a majority of the servers has, of any process; held is false if there is none, also while
// attempts of several callers have a minority each. Fence is the largest that those servers gave, and ExpiresIn the shortest of
// theirs. A lock of another library has a token and no fence. Owner is empty while the server of the holder's first keeper does
// not answer. Holder blocks until a majority agrees or all servers have answered, for at most ServerTimeout. The error is
// ErrUnavailable if no majority answered. See [lockkeeper.Holder].
func (l *Lock) Holder(ctx context.Context) (h lockkeeper.Holder, held bool, err error) {
	part, held, err := l.lock.Holder(ctx)
	if err != nil || !held {
		return lockkeeper.Holder{}, false, err
	}
	list, err := access.Holders[lockkeeper.Holder]([]views.Holder{part}, nil)
	return list[0], true, err
}
