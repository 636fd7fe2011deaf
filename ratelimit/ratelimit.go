package ratelimit

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/internal/retainer"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/lua"
)

// maxPermits is the largest limit; sums of permits stay far from where numbers lose precision.
const maxPermits = 1_000_000_000

// Bounds of a window.
const (
	MinWindow = 10 * time.Millisecond
	MaxWindow = 365 * 24 * time.Hour
)

// MinRetainWindow is the shortest window with Options.Retain.
const MinRetainWindow = retain.MinWindow

// MaxPause is the longest that Pause accepts.
const MaxPause = 24 * time.Hour

// ErrAboveLimit is the error of a request for more permits than the limit in force, which another process or SetLimit has made
// lower than this Limiter's own. Waiting does not help until the limit is raised. Nothing is taken.
var ErrAboveLimit = server.ErrAboveLimit

// LimitedError is the error of a request that cannot be granted until permits have returned. TryAcquire returns it; Wait,
// Acquire and Do return it at once if the permits cannot return before the deadline of ctx. Find it with errors.As. It matches
// lockkeeper.ErrNotAcquired. Nothing was taken, and no waiter lost its place.
//
// RetryAt is the earliest time at which the request could be granted, given what is taken and who is queued; it is not a
// promise. It is exact if each request takes one permit, or if fewer than fifty requests are queued and fewer than fifty have
// to return first; otherwise it may be too early, never too late.
type LimitedError struct {
	RetryAfter time.Duration // from when the reply arrived
	RetryAt    time.Time     // the same by the clock of this process

	err error
}

// Error implements error.
func (e *LimitedError) Error() string { return e.err.Error() }

// Unwrap lets errors.Is find lockkeeper.ErrNotAcquired.
func (e *LimitedError) Unwrap() error { return e.err }

// Result is the answer of Allow, with what HTTP headers such as RateLimit-Remaining and Retry-After need. All fields describe
// the moment in which the request was granted or refused.
type Result struct {
	// Allowed says whether the permits were taken.
	Allowed bool

	// Limit is the limit in force, which SetLimit or a caller with another limit may have changed.
	Limit int

	// Remaining is how many permits of the window are left; 0 in a pause. It is exact if each request takes one permit, or if
	// the permits of at most a hundred requests have returned since the server last counted; otherwise it may be too small, but
	// never too large. Waiters are served first, so a call for that many can be refused.
	Remaining int

	// RetryAfter is how long until the call could be allowed, if it was not; LimitedError says how exact it is. It is 0 if
	// the call was allowed, and also if permits are left but waiters are about to be served first.
	RetryAfter time.Duration

	// ResetAfter is how long until all permits have returned if no more are taken, and until a pause has ended.
	ResetAfter time.Duration

	// Fence is the number of the grant, as Do passes it to fn; 0 if the call was not allowed.
	Fence uint64
}

// Options are the settings of a limiter. Package [lockkeeper] documents the last three fields, which may be set only with
// MaxConcurrent, because without it there are no leases.
type Options struct {
	// MaxConcurrent is how many permits may be held at the same time, in addition to the limit of the window: for example for an
	// API that allows a hundred calls per second, ten at once. Permits are then acquired with a lease, by Acquire, TryAcquire or
	// Do, under both limits in one step. From 1 to 1,000,000,000. Default 0: no bound.
	MaxConcurrent int

	// Retain lets the process take permits ahead, in blocks of as many as its callers have lately needed within a twentieth of the window,
	// and grant them without a round trip. When the server has refused, the process refuses by itself until permits can have returned, for a
	// twentieth of the window at most. The promise stays: no window has more grants than the limit. See "Permits taken ahead" in the package
	// comment for what it costs. All processes of a name must set it alike. The window is at least MinRetainWindow, and MaxConcurrent 0.
	// Default false.
	Retain bool

	TTL         time.Duration
	NoRenewal   bool
	MaxLifetime time.Duration
}

// Kind is the kind of a rate limit in the events of hooks and for package admin.
const Kind lockkeeper.Kind = "ratelimit"

// Limiter is a rate limit on one name. It is immutable and safe for concurrent use.
type Limiter struct {
	lock          *keeper.Lock
	permits       *retainer.Permits // nil without Retain
	maxConcurrent int
	most          int    // permits per request,
	bound         string // because of this
}

// New returns the limiter of a name: all processes together are granted at most limit permits in any window of that length. It
// sends nothing. The limit is from 1 to 1,000,000,000. The window is from MinWindow to MaxWindow, in whole milliseconds; a
// fraction is rounded up. The error is ErrInvalid; see package [lockkeeper].
func New(k *lockkeeper.Keeper, name string, limit int, window time.Duration, opts *Options) (*Limiter, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if err := checkPermits("limit", limit); err != nil {
		return nil, err
	}
	if window < MinWindow || window > MaxWindow {
		return nil, server.Invalid("window %v is not between %v and %v", window, MinWindow, MaxWindow)
	}
	most, bound := limit, "the limit"
	switch {
	case o.MaxConcurrent != 0:
		if err := checkPermits("MaxConcurrent", o.MaxConcurrent); err != nil {
			return nil, err
		}
		if o.Retain {
			return nil, server.Invalid("Retain is set together with MaxConcurrent %d; permits that are held at once are not taken ahead", o.MaxConcurrent)
		}
		if o.MaxConcurrent < limit {
			most, bound = o.MaxConcurrent, "MaxConcurrent"
		}
	case o.TTL != 0 || o.NoRenewal || o.MaxLifetime != 0:
		return nil, server.Invalid("TTL %v, NoRenewal %t, MaxLifetime %v: without MaxConcurrent there is no lease", o.TTL, o.NoRenewal, o.MaxLifetime)
	}
	if o.TTL == 0 {
		o.TTL = lockkeeper.DefaultTTL
	}
	spec := keeper.Spec{
		Scripts:     lua.RateLimit,
		Name:        name,
		TTL:         o.TTL,
		MaxLifetime: o.MaxLifetime,
		NoRenewal:   o.NoRenewal,
		Limits: &keeper.Limits{
			AtOnce: o.MaxConcurrent,
			Window: limit,
			Per:    wholeMillis(window),
		},
	}
	l := &Limiter{maxConcurrent: o.MaxConcurrent, most: most, bound: bound}
	var err error
	if o.Retain {
		if l.permits, err = retainer.NewPermits(access.KeeperOf(k), spec, access.RetainedBy(k)); err == nil {
			l.lock = l.permits.Lock()
		}
	} else {
		l.lock, err = access.KeeperOf(k).Lock(spec)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// wholeMillis rounds up.
func wholeMillis(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1) / time.Millisecond * time.Millisecond
}

func checkPermits(what string, n int) error {
	if n < 1 || n > maxPermits {
		return server.Invalid("%s %d is not between 1 and %d", what, n, maxPermits)
	}
	return nil
}

// checkCount refuses a request for a number of permits that can never be had.
func (l *Limiter) checkCount(n int) error {
	if n < 1 || n > l.most {
		return server.Invalid("n %d is not between 1 and %s %d", n, l.bound, l.most)
	}
	return nil
}

// checkLeaseless refuses what could not give back a permit that counts against MaxConcurrent.
func (l *Limiter) checkLeaseless(n int, method string) error {
	if l.maxConcurrent > 0 {
		return server.Invalid("%s with MaxConcurrent %d: nothing would release the permit; use Acquire, TryAcquire or Do", method, l.maxConcurrent)
	}
	return l.checkCount(n)
}

// Name returns the name of the rate limit.
func (l *Limiter) Name() string { return l.lock.Name() }

// Key returns the Redis key of the rate limit, which identifies it among all locks; lockkeeper.LockAll needs it.
func (l *Limiter) Key() string { return l.lock.Key() }

// MaxConcurrent returns Options.MaxConcurrent, which is 0 if permits have no lease.
func (l *Limiter) MaxConcurrent() int { return l.maxConcurrent }

// Locker returns a [lockkeeper.Locker] for n permits, whose Lock method is AcquireN of n, and whose TryLock method is
// TryAcquireN of n. The error is ErrInvalid if AcquireN cannot be called with n, in particular without MaxConcurrent.
func (l *Limiter) Locker(n int) (lockkeeper.Locker, error) {
	if err := l.checkLease(n, "Locker"); err != nil {
		return nil, err
	}
	return permits{l, n}, nil
}

// permits is a number of permits that are held.
type permits struct {
	*Limiter
	n int
}

func (p permits) Lock(ctx context.Context) (*lockkeeper.Lease, error) { return p.AcquireN(ctx, p.n) }
func (p permits) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	return p.TryAcquireN(ctx, p.n)
}

// Allow is AllowN of one permit.
func (l *Limiter) Allow(ctx context.Context) (Result, error) { return l.AllowN(ctx, 1) }

// AllowN takes n permits if they are available and nobody is queued. It never waits for permits; it blocks for a round
// trip. A refusal is not an error: Result.Allowed says whether the permits were taken.
//
// After an error the permits were not taken, or are given back in the background. The error is ErrInvalid if n is not between 1
// and the limit of New, or if the limiter has MaxConcurrent, and ErrAboveLimit if the limit in force is lower than n. Others
// are as in package [lockkeeper].
func (l *Limiter) AllowN(ctx context.Context, n int) (Result, error) {
	if err := l.checkLeaseless(n, "Allow"); err != nil {
		return Result{}, err
	}
	q, fence, err := l.tryTake(ctx, n)
	if err != nil {
		return Result{}, limited(err)
	}
	return Result{fence > 0, q.Limit, q.Remaining, q.RetryAfter, q.ResetAfter, fence}, nil
}

// Wait is WaitN of one permit.
func (l *Limiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN waits in the queue until it is granted n permits, until ctx ends, or until the keeper's retry policy gives up. If the
// permits cannot be available before the deadline of ctx, WaitN returns a *LimitedError at once. The permits return one window
// after the grant.
//
// After an error the permits were not taken, or are given back in the background. The error is ErrInvalid if n is not between 1
// and the limit of New, or if the limiter has MaxConcurrent, and ErrAboveLimit if the limit in force is lower than n, or is
// lowered below n during the wait. Others are as in package [lockkeeper].
func (l *Limiter) WaitN(ctx context.Context, n int) error {
	if err := l.checkLeaseless(n, "Wait"); err != nil {
		return err
	}
	_, err := l.take(ctx, n)
	return limited(err)
}

func (l *Limiter) tryTake(ctx context.Context, n int) (keeper.Quota, uint64, error) {
	if l.permits != nil {
		return l.permits.TryTake(ctx, keeper.Terms{Number: n})
	}
	return l.lock.TryTake(ctx, keeper.Terms{Number: n})
}

func (l *Limiter) take(ctx context.Context, n int) (fence uint64, err error) {
	if l.permits != nil {
		return l.permits.Take(ctx, keeper.Terms{Number: n})
	}
	return l.lock.Take(ctx, keeper.Terms{Number: n})
}

// forget makes this process ask the server again, since the limit or a pause may have changed.
func (l *Limiter) forget() {
	if l.permits != nil {
		l.permits.Forget()
	}
}

// Do is DoN of one permit.
func (l *Limiter) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return l.DoN(ctx, 1, fn)
}

// DoN calls fn with n permits. With MaxConcurrent, it acquires a lease as AcquireN does, calls fn with a context that ends when
// the lease is lost, and releases the lease; see package [lockkeeper]. Without MaxConcurrent, it waits as WaitN does and calls
// fn with ctx; nothing is held while fn runs. The fence is the number of the grant, which is larger than those of all earlier
// grants.
func (l *Limiter) DoN(ctx context.Context, n int, fn func(ctx context.Context, fence uint64) error) error {
	if l.maxConcurrent > 0 {
		h, err := l.acquire(ctx, n)
		if err != nil {
			return err
		}
		return h.Do(ctx, fn)
	}
	if err := l.checkCount(n); err != nil {
		return err
	}
	fence, err := l.take(ctx, n)
	if err != nil {
		return limited(err)
	}
	return fn(ctx, fence)
}

// Acquire is AcquireN of one permit.
func (l *Limiter) Acquire(ctx context.Context) (*lockkeeper.Lease, error) { return l.AcquireN(ctx, 1) }

// AcquireN waits in the queue until it is granted n permits under both limits, until ctx ends, or until the keeper's retry
// policy gives up, and returns one lease over them. The end of the lease returns them to MaxConcurrent; to the window they
// return one window after the grant, whatever happens to the lease. If the window cannot have them available before the
// deadline of ctx, AcquireN returns a *LimitedError at once.
//
// The error is ErrInvalid if n is not between 1 and the smaller of the limit and MaxConcurrent, or if the limiter has no
// MaxConcurrent; use Wait then. Others are as for WaitN.
func (l *Limiter) AcquireN(ctx context.Context, n int) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.acquire(ctx, n))
}

func (l *Limiter) acquire(ctx context.Context, n int) (*lease.Lease, error) {
	if err := l.checkLease(n, "Acquire"); err != nil {
		return nil, err
	}
	h, err := l.lock.Acquire(ctx, keeper.Terms{Number: n})
	return h, limited(err)
}

// TryAcquire is TryAcquireN of one permit.
func (l *Limiter) TryAcquire(ctx context.Context) (*lockkeeper.Lease, error) {
	return l.TryAcquireN(ctx, 1)
}

// TryAcquireN acquires n permits if they are available and nobody is queued. It blocks for a round trip. Otherwise the error
// matches ErrNotAcquired; it is a *LimitedError if permits have to return to the window first, but not if only MaxConcurrent is
// reached. Others are as for AcquireN.
func (l *Limiter) TryAcquireN(ctx context.Context, n int) (*lockkeeper.Lease, error) {
	if err := l.checkLease(n, "TryAcquire"); err != nil {
		return nil, err
	}
	h, err := l.lock.Try(ctx, keeper.Terms{Number: n})
	return access.Lease[lockkeeper.Lease](h, limited(err))
}

// checkLease refuses to acquire where there are no leases.
func (l *Limiter) checkLease(n int, method string) error {
	if l.maxConcurrent == 0 {
		return server.Invalid("%s without MaxConcurrent: there is nothing to hold; use Wait, Allow or Do", method)
	}
	return l.checkCount(n)
}

// limited makes a LimitedError of a refusal that is for the clock.
func limited(err error) error {
	var soon *keeper.TooSoon
	if errors.As(err, &soon) {
		return &LimitedError{soon.After, soon.At, err}
	}
	return err
}

// SetLimit changes the limit of the window for all processes. Raising it admits waiters before SetLimit returns. Lowering it
// returns no permit early; queued requests for more than the new limit fail with ErrAboveLimit, the first in the queue at
// once and the others within a heartbeat. The limit stays in force until a call, also of this Limiter, has another limit,
// window or MaxConcurrent than the call before it, or until the name has been unused for the window and the keeper's
// Options.MetadataTTL.
//
// New's limit remains the most that this Limiter can be asked for. SetLimit blocks until the server has answered, until ctx
// ends, or until the keeper's retry policy gives up. The error is ErrInvalid for a limit that New would refuse; after any
// other error the limit may or may not have been changed.
func (l *Limiter) SetLimit(ctx context.Context, limit int) error {
	if err := checkPermits("limit", limit); err != nil {
		return err
	}
	defer l.forget()
	_, err := l.lock.Limit(ctx, limit)
	return err
}

// Pause keeps all processes from taking permits for d, for example because a service has answered that it is overloaded. The
// server enforces it: no process has to be notified. During the pause waiters stay in the queue; they are served in order
// afterwards. Allow and TryAcquire are refused, and a call that waits is refused at once if its context ends before the pause
// does. LimitedError and Result say when to try again. Permits that were granted before, and their leases, are not affected;
// these permits return to the window during the pause as usual.
//
// The pause begins when the server receives it, and lasts for d by the server's clock. It does not shorten a pause that lasts
// longer. Resume ends it; SetLimit, and callers with another limit, do not. If the server loses its data, the pause ends; see
// the package comment.
//
// d is from 1 ms to MaxPause; a fraction of a millisecond is rounded up. Pause blocks until the server has answered, until ctx
// ends, or until the keeper's retry policy gives up. The error is ErrInvalid if d is out of bounds; after any other error the
// pause may or may not have begun.
func (l *Limiter) Pause(ctx context.Context, d time.Duration) error {
	if d < time.Millisecond || d > MaxPause {
		return server.Invalid("pause %v is not between 1ms and %v", d, MaxPause)
	}
	defer l.forget()
	return l.lock.Pause(ctx, wholeMillis(d))
}

// Resume ends a pause, if there is one, and admits waiters before it returns. It blocks as Pause does. After an error the pause
// may or may not have ended.
func (l *Limiter) Resume(ctx context.Context) error {
	defer l.forget()
	return l.lock.Resume(ctx)
}

// Available returns how many permits are free at present under the limits in force; 0 in a pause, and if a limit was lowered
// below what is taken. Waiters are served first, so a call for that many can be refused. Available takes no permits. It blocks
// until the server has answered, until ctx ends, or until the keeper's retry policy gives up: for a round trip, or several if
// many thousands of permits have returned since the last call. Errors are as for Holders; see package [lockkeeper].
func (l *Limiter) Available(ctx context.Context) (int, error) {
	t, err := l.lock.Limit(ctx, 0)
	if err != nil {
		return 0, err
	}
	if t.Paused {
		return 0, nil
	}
	free := t.Window - t.Spent
	if t.AtOnce > 0 {
		free = min(free, t.AtOnce-t.Held)
	}
	return max(free, 0), nil
}

// Adopt makes a lease from a token of a lease of this name; see package [lockkeeper]. The error is ErrInvalid without
// MaxConcurrent.
func (l *Limiter) Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error) {
	if l.maxConcurrent == 0 {
		return nil, server.Invalid("Adopt without MaxConcurrent: there are no leases")
	}
	return access.Lease[lockkeeper.Lease](l.lock.Adopt(ctx, token))
}

// Holders returns who has permits, in any process; see package [lockkeeper]. With MaxConcurrent these are the leases. Without
// MaxConcurrent they are the requests whose permits have not returned yet, and ExpiresIn is how long until they do.
func (l *Limiter) Holders(ctx context.Context) ([]lockkeeper.Holder, error) {
	return access.Holders[lockkeeper.Holder](views.Holders(ctx, l.lock.AtServer()))
}

// Waiters returns who waits, in the order in which they will be served; see package [lockkeeper].
func (l *Limiter) Waiters(ctx context.Context) ([]lockkeeper.Waiter, error) {
	return access.Waiters[lockkeeper.Waiter](views.Waiters(ctx, l.lock.AtServer()))
}
