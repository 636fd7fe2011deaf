package redlock

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/lockkeeper/lockkeeper/internal/quorum"
	"github.com/lockkeeper/lockkeeper/lua"
)

// DefaultMaxRetryDelay is the default of Options.MaxRetryDelay.
const DefaultMaxRetryDelay = 250 * time.Millisecond

// Options are the settings of a lock. The zero value, and nil, mean the defaults. New copies them.
type Options struct {
	// TTL is how long a lease lasts without renewal, and so how long a crashed holder keeps others out. Whole
	// milliseconds, at least 10 ms; a fraction of one is dropped. Default 30 s.
	TTL time.Duration

	// NoRenewal makes leases end at their TTL unless they are extended. By default they are renewed in the background
	// at a third of it. A lease that is not renewed stays at the servers that granted it at first.
	NoRenewal bool

	// MaxLifetime ends renewal, so that a lease lasts no longer than this: against holders that hang. At least TTL; an
	// Extend beyond it is refused.
	// Default 0: no bound.
	MaxLifetime time.Duration

	// ServerTimeout is how long one server is waited for, at each step, if the others do not make a majority without
	// it. At least 1 ms, at most half of TTL. Default a tenth of TTL, but no more than 500 ms.
	ServerTimeout time.Duration

	// MaxRetryDelay is the longest of the random pauses between two attempts while somebody else holds the lock, on average; they
	// begin at 10 ms. At least 10 ms. Default 250 ms.
	MaxRetryDelay time.Duration

	// MinUptime keeps a server from counting until it has run for so long, by its INFO: a server that restarted
	// without its data does not know of leases that were granted before, and after their ttl there are none
	// (https://redis.io/docs/latest/develop/use/patterns/distributed-locks/, "delayed restarts"). At least TTL; it should
	// be the longest TTL, or Extend, that any process uses on this name. It takes the right to INFO, and a round trip
	// more for each acquisition. It does not see data that was lost without a restart, by FLUSHALL, eviction or a
	// failover to a replica, and it believes the server's wall clock. Default 0: a server counts at once.
	MinUptime time.Duration
}

// Lock is a lock on one name. It is immutable and safe to share; each acquisition returns a lease of its own. It is not
// re-entrant: a holder that locks again waits for itself.
type Lock struct {
	lock *quorum.Lock
}

// New returns the lock of a name on the servers of these keepers. It sends nothing. The error is ErrInvalid, for a number
// of keepers that is not odd, a keeper that is nil or there twice, a name that is empty, longer than 1024 bytes or breaks
// the cluster's hash tags, or an option out of range.
//
// Each keeper needs a server of its own. Lock, TryLock, Do and Adopt compare the run_id that the servers give by INFO, and
// return ErrInvalid if two keepers use the same one. The first call waits for that, for ServerTimeout at the most; later ones
// refresh it in the background, once a minute. A server that does not answer then or does not say it, for want of the right to
// INFO for instance, is not compared, of which the latter is logged once.
//
// The first keeper's retry policy, hooks and local line are those of the lock. Events at single servers are not told.
func New(keepers []*lockkeeper.Keeper, name string, opts *Options) (*Lock, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TTL == 0 {
		o.TTL = lockkeeper.DefaultTTL
	}
	if o.MaxRetryDelay == 0 {
		o.MaxRetryDelay = DefaultMaxRetryDelay
	}
	var engines []*engine.Engine
	ids := make([]string, len(keepers))
	for i, k := range keepers {
		engines = append(engines, access.EngineOf(k))
		if k != nil {
			ids[i] = k.ID()
		}
	}
	lock, err := quorum.New(quorum.Spec{
		Spec: engine.Spec{
			Scripts:     lua.Redlock,
			Name:        name,
			PlainKey:    true,
			TTL:         o.TTL,
			MaxLifetime: o.MaxLifetime,
			NoRenewal:   o.NoRenewal,
		},
		Engines:       engines,
		ServerTimeout: o.ServerTimeout,
		MaxRetryDelay: o.MaxRetryDelay,
		MinUptime:     o.MinUptime,
		Fail:          func(answers []error, causes ...error) error { return newError(name, ids, answers, causes) },
	})
	if err != nil {
		return nil, err
	}
	return &Lock{lock}, nil
}

// Lock waits until the lock is the caller's, and returns the lease. Only ctx bounds the wait; without a deadline it
// waits as long as it takes.
//
// When ctx ends, Lock returns at once. Its error is the context's, and besides lockkeeper.ErrNotAcquired if a majority of
// servers answered not long ago, and only others were in the way, or lockkeeper.ErrUnavailable if not. What was granted
// meanwhile is given back in the background. ErrUnavailable alone means that no majority answered until the first keeper's
// retry policy gave up, ErrClosed that one of the keepers was closed. Other errors are those of the servers, at once, if
// somebody has to change something at so many of them that no majority can come about. All but ErrInvalid are an *Error with the answer of each server. After any error nothing is held.
func (l *Lock) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Acquire(ctx))
}

// TryLock takes the lock if it is free, and does not wait for a holder: it blocks for a round trip, or for ServerTimeout
// if too few servers answer, which it tries three times at the most. It returns ErrNotAcquired if a majority of servers
// answered and some refused. Of several that try at the same moment it can be that none gets a majority. Other errors are
// as for Lock.
func (l *Lock) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Try(ctx))
}

// Do runs fn while holding the lock: it locks, calls fn with a context that ends when the lease is lost, and with the
// lease's fence, and releases, also if fn panics. It returns Lock's error, or fn's, joined with ErrLost if the lease was
// lost meanwhile. It releases with ctx: while Redis does not answer it waits
// until ctx ends, or the lease does.
func (l *Lock) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	h, err := l.lock.Acquire(ctx)
	if err != nil {
		return err
	}
	return engine.Do(ctx, h, fn)
}

// Adopt makes a lease out of a token, in another process than the one that acquired it or after a restart, and extends
// it to the whole TTL at a majority of servers. From then on two leases stand for one lock: the former holder must stop
// using its own, and it should have been acquired with NoRenewal. The fence is that of the lease or, if a server that
// joined late had given a larger one, that. It blocks until a majority has answered, for ServerTimeout at the most for
// each of two steps. The error is ErrLost if the token does not hold the lock at a majority any more.
func (l *Lock) Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Adopt(ctx, token))
}
