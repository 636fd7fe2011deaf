package ratelimit

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/views"
)

// ConcurrentOptions are the settings of a ConcurrentLimiter. Nil, and the zero value of each field, mean the defaults.
// NewConcurrent copies them. There is no Ahead: the section "Permits" of docs/protocol.md says why.
type ConcurrentOptions struct {
	// TTL is how long a lease lasts without renewal, and so how long a crashed holder keeps others out. From 10 ms to 365 days.
	// Default 30 s ([lockkeeper.DefaultTTL]).
	TTL time.Duration

	// NoRenewal makes a lease end after TTL unless it is extended. Default false: it is renewed after each third of TTL.
	NoRenewal bool

	// MaxLifetime bounds how long a lease lasts, however often it is renewed or extended. At least TTL. Default 0: no bound.
	MaxLifetime time.Duration
}

// ConcurrentLimiter is a rate limit on one name that also bounds how many permits are held at the same time. It is immutable and
// safe for concurrent use.
type ConcurrentLimiter struct {
	window
}

// NewConcurrent returns the limiter of a name: all processes together are granted at most limit permits in any window of that
// length, and hold at most maxConcurrent at the same time. It sends nothing. The limit and maxConcurrent are from 1 to
// 1,000,000,000. The window is from MinWindow to MaxWindow, in whole milliseconds; a fraction is rounded up. The error is
// ErrInvalid; see package [lockkeeper].
func NewConcurrent(k *lockkeeper.Keeper, name string, limit int, window time.Duration, maxConcurrent int, opts *ConcurrentOptions) (*ConcurrentLimiter, error) {
	var o ConcurrentOptions
	if opts != nil {
		o = *opts
	}
	spec, err := newSpec(name, limit, window)
	if err != nil {
		return nil, err
	}
	if err := checkPermits("maxConcurrent", maxConcurrent); err != nil {
		return nil, server.OfLock(string(Kind), name, err)
	}
	spec.Limits.AtOnce = maxConcurrent
	spec.TTL, spec.NoRenewal, spec.MaxLifetime = o.TTL, o.NoRenewal, o.MaxLifetime
	if o.TTL == 0 {
		spec.TTL = lockkeeper.DefaultTTL
	}
	l := &ConcurrentLimiter{}
	l.most, l.bound, l.names = limit, "the limit", access.AheadBy(k)
	if maxConcurrent < limit {
		l.most, l.bound = maxConcurrent, "maxConcurrent"
	}
	if l.lock, err = access.KeeperOf(k).Lock(spec); err != nil {
		return nil, err
	}
	return l, nil
}

// Locker returns a [lockkeeper.Locker] for one permit, whose Lock method is Acquire, and whose TryLock method is TryAcquire.
func (l *ConcurrentLimiter) Locker() lockkeeper.Locker { return permits{l, 1} }

// LockerN returns a Locker for n permits, whose methods are AcquireN and TryAcquireN. The error is ErrInvalid if n is not between 1
// and the smaller of the limit and maxConcurrent.
func (l *ConcurrentLimiter) LockerN(n int) (lockkeeper.Locker, error) {
	if err := l.checkCount(n); err != nil {
		return nil, err
	}
	return permits{l, n}, nil
}

// permits is a number of permits that are held.
type permits struct {
	*ConcurrentLimiter
	n int
}

func (p permits) Lock(ctx context.Context) (*lockkeeper.Lease, error) { return p.AcquireN(ctx, p.n) }
func (p permits) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return p.TryAcquireN(ctx, p.n)
}

// Acquire is AcquireN of one permit.
func (l *ConcurrentLimiter) Acquire(ctx context.Context) (*lockkeeper.Lease, error) {
	return l.AcquireN(ctx, 1)
}

// AcquireN waits in the queue until it is granted n permits under both limits, until ctx ends, or until the keeper's retry
// policy gives up, and returns one lease over them. While the lease is held, the permits count against maxConcurrent; against
// the limit of the window they count for one window from the grant, whatever happens to the lease. If the window cannot have
// them available before the deadline of ctx, AcquireN returns a *LimitedError at once.
//
// The error is ErrInvalid if n is not between 1 and the smaller of the limit and maxConcurrent, and ErrAboveLimit if the limit
// in force is lower than n, or is lowered below n during the wait. Others are as in package [lockkeeper].
func (l *ConcurrentLimiter) AcquireN(ctx context.Context, n int) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.acquire(ctx, n))
}

func (l *ConcurrentLimiter) acquire(ctx context.Context, n int) (*keeper.Lease, error) {
	if err := l.checkCount(n); err != nil {
		return nil, err
	}
	h, err := l.lock.Acquire(ctx, keeper.Terms{Number: n})
	return h, limited(err)
}

// TryAcquire is TryAcquireN of one permit.
func (l *ConcurrentLimiter) TryAcquire(ctx context.Context) (*lockkeeper.Lease, error) {
	return l.TryAcquireN(ctx, 1)
}

// TryAcquireN acquires n permits if they are available and nobody is queued. It blocks for a round trip. Otherwise the error
// matches ErrNotAcquired; it is a *LimitedError if permits have to return to the window first, but not if only maxConcurrent is
// reached. Others are as for AcquireN.
func (l *ConcurrentLimiter) TryAcquireN(ctx context.Context, n int) (*lockkeeper.Lease, error) {
	if err := l.checkCount(n); err != nil {
		return nil, err
	}
	h, err := l.lock.Try(ctx, keeper.Terms{Number: n})
	return access.Lease[lockkeeper.Lease](h, limited(err))
}

// Do is DoN with one permit.
func (l *ConcurrentLimiter) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return l.DoN(ctx, 1, fn)
}

// DoN calls fn while holding n permits, for which it waits as AcquireN does; see package [lockkeeper].
func (l *ConcurrentLimiter) DoN(ctx context.Context, n int, fn func(ctx context.Context, fence uint64) error) error {
	if fn == nil {
		return l.lock.Invalid("fn is nil")
	}
	h, err := l.acquire(ctx, n)
	if err != nil {
		return err
	}
	return lifecycle.Do(ctx, h, fn)
}

// Adopt makes a lease from a token that holds permits; see [lockkeeper.Lease.Token].
func (l *ConcurrentLimiter) Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.lock.Adopt(ctx, token))
}

// Holders returns who holds permits, in any process; see [lockkeeper.Holder].
func (l *ConcurrentLimiter) Holders(ctx context.Context) ([]lockkeeper.Holder, error) {
	return access.Holders[lockkeeper.Holder](views.Holders(ctx, l.lock.AtServer()))
}
