package ratelimit

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/lockkeeper/lockkeeper/lua"
)

// maxPermits is the largest limit; sums of permits stay far from where numbers lose precision.
const maxPermits = 1_000_000_000

// Bounds of a window.
const (
	MinWindow = 10 * time.Millisecond
	MaxWindow = 365 * 24 * time.Hour
)

// MaxPause is the longest that Pause accepts.
const MaxPause = 24 * time.Hour

// ErrAboveLimit is the error of a call that asks for more permits than the limit in force, which is lower than this
// Limiter's. Waiting does not help until the limit is raised. Nothing is taken.
var ErrAboveLimit = engine.ErrAboveLimit

// LimitedError is the error of a request that cannot be granted before permits have returned: of Wait, Acquire and Do, at
// once, if that is after the deadline of ctx, and of TryAcquire. Use errors.As. It matches lockkeeper.ErrNotAcquired.
// Nothing was taken, and no waiter lost its place.
//
// The time is the earliest at which the request could be granted, given what is taken and who is queued; it is not a
// promise. It is exact if each request takes one permit, or if fewer than fifty requests are queued and fewer than fifty
// have to return first; otherwise it may be too early, never too late.
type LimitedError struct {
	RetryAfter time.Duration // from when the reply arrived
	RetryAt    time.Time     // the same by the clock of this process

	err error
}

// Error implements error.
func (e *LimitedError) Error() string { return e.err.Error() }

// Unwrap lets errors.Is find lockkeeper.ErrNotAcquired.
func (e *LimitedError) Unwrap() error { return e.err }

// Result is the answer to Allow: what HTTP headers such as RateLimit-Remaining and Retry-After need. All of it is of one
// moment, in which the request was granted or refused.
type Result struct {
	// Allowed says whether the permits were taken.
	Allowed bool

	// Limit is the limit in force, which SetLimit or a caller with another limit may have changed.
	Limit int

	// Remaining is how many permits of the window are left; in a pause none. It is exact if each request takes one permit, or if no more than
	// a hundred requests have returned theirs since the last ones were counted; otherwise it may be less than there are, and
	// never more. Waiters are served first, so a call for that many can be refused.
	Remaining int

	// RetryAfter is how long until the call could be allowed, if it was not; LimitedError says how exact it is. It is 0 if
	// the call was allowed, and also if permits are left but waiters are about to be served first.
	RetryAfter time.Duration

	// ResetAfter is how long until all permits have returned, if no more are taken, and a pause has ended.
	ResetAfter time.Duration

	// Fence is the number of the grant, as Do has it; 0 if the call was not allowed.
	Fence uint64
}

// Options are the settings of a limiter. Package [lockkeeper] documents the last three, which belong to leases: they may
// be set only with MaxConcurrent.
type Options struct {
	// MaxConcurrent is how many permits may be held at the same time, beside the limit of the window: an API that allows a
	// hundred calls per second, ten at once. Then permits are acquired with a lease, by Acquire, TryAcquire or Do, under
	// both limits in one step. From 1 to 1,000,000,000. Default 0: no bound.
	MaxConcurrent int

	TTL         time.Duration
	NoRenewal   bool
	MaxLifetime time.Duration
}

// Limiter is a rate limit under one name. It is immutable and safe for concurrent use.
type Limiter struct {
	lock          *engine.Lock
	maxConcurrent int
	most          int    // permits per request,
	bound         string // because of this
}

// New returns the limiter of a name: no window of that length ever holds more than limit permits, over all processes. It
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
		return nil, engine.Invalid("window %v is not between %v and %v", window, MinWindow, MaxWindow)
	}
	most, bound := limit, "the limit"
	switch {
	case o.MaxConcurrent != 0:
		if err := checkPermits("MaxConcurrent", o.MaxConcurrent); err != nil {
			return nil, err
		}
		if o.MaxConcurrent < limit {
			most, bound = o.MaxConcurrent, "MaxConcurrent"
		}
	case o.TTL != 0 || o.NoRenewal || o.MaxLifetime != 0:
		return nil, engine.Invalid("TTL %v, NoRenewal %t, MaxLifetime %v: without MaxConcurrent there is no lease", o.TTL, o.NoRenewal, o.MaxLifetime)
	}
	if o.TTL == 0 {
		o.TTL = lockkeeper.DefaultTTL
	}
	lock, err := access.EngineOf(k).Lock(engine.Spec{
		Scripts:     lua.RateLimit,
		Name:        name,
		TTL:         o.TTL,
		MaxLifetime: o.MaxLifetime,
		NoRenewal:   o.NoRenewal,
		Limits: &engine.Limits{
			AtOnce: o.MaxConcurrent,
			Window: limit,
			Per:    wholeMillis(window),
		},
	})
	if err != nil {
		return nil, err
	}
	return &Limiter{lock, o.MaxConcurrent, most, bound}, nil
}

// wholeMillis rounds up.
func wholeMillis(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1) / time.Millisecond * time.Millisecond
}

func checkPermits(what string, n int) error {
	if n < 1 || n > maxPermits {
		return engine.Invalid("%s %d is not between 1 and %d", what, n, maxPermits)
	}
	return nil
}

// checkCount refuses a request for a number of permits that can never be had.
func (l *Limiter) checkCount(n int) error {
	if n < 1 || n > l.most {
		return engine.Invalid("n %d is not between 1 and %s %d", n, l.bound, l.most)
	}
	return nil
}

// checkLeaseless refuses what could not give back a permit that counts against MaxConcurrent.
func (l *Limiter) checkLeaseless(n int, method string) error {
	if l.maxConcurrent > 0 {
		return engine.Invalid("%s with MaxConcurrent %d: nothing would release the permit; use Acquire, TryAcquire or Do", method, l.maxConcurrent)
	}
	return l.checkCount(n)
}

// Name returns the name of the rate limit.
func (l *Limiter) Name() string { return l.lock.Name() }

// Key returns the Redis key of the rate limit, which identifies it among all locks; lockkeeper.LockAll needs it.
func (l *Limiter) Key() string { return l.lock.Key() }

// MaxConcurrent returns Options.MaxConcurrent: 0 if permits have no lease.
func (l *Limiter) MaxConcurrent() int { return l.maxConcurrent }

// Locker returns n permits of a limiter with MaxConcurrent as a [lockkeeper.Locker]: its Lock is AcquireN of n, and its TryLock
// is TryAcquireN of n. The error is ErrInvalid if AcquireN cannot be called with n.
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
// After an error the permits were not taken, or are given back in the background. The error is ErrInvalid if n is not
// between 1 and the limit, or if the limiter has MaxConcurrent; ErrAboveLimit if the limit in force is lower than n. Others
// are as in package [lockkeeper].
func (l *Limiter) AllowN(ctx context.Context, n int) (Result, error) {
	if err := l.checkLeaseless(n, "Allow"); err != nil {
		return Result{}, err
	}
	q, fence, err := l.lock.TryTake(ctx, engine.Terms{Number: n})
	if err != nil {
		return Result{}, limited(err)
	}
	return Result{fence > 0, q.Limit, q.Remaining, q.RetryAfter, q.ResetAfter, fence}, nil
}

// Wait is WaitN of one permit.
func (l *Limiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN waits in the queue until it is granted n permits, until ctx ends, or until the keeper's retry policy gives up.
// Without a deadline it waits as long as it takes. If the permits cannot be available before the deadline of ctx, it returns
// a *LimitedError at once.
//
// After an error the permits were not taken, or are given back in the background. The error is ErrInvalid if n is not
// between 1 and the limit, or if the limiter has MaxConcurrent; ErrAboveLimit if the limit in force is lower than n, or is
// lowered below it. Others are as in package [lockkeeper].
func (l *Limiter) WaitN(ctx context.Context, n int) error {
	if err := l.checkLeaseless(n, "Wait"); err != nil {
		return err
	}
	_, err := l.lock.Take(ctx, engine.Terms{Number: n})
	return limited(err)
}

// Do is DoN of one permit.
func (l *Limiter) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return l.DoN(ctx, 1, fn)
}

// DoN calls fn with n permits. With MaxConcurrent it is AcquireN, fn with a context that ends when the lease is lost, and
// Release; see package [lockkeeper]. Without, it is WaitN and then fn with ctx: nothing is held while fn runs. The fence is
// the number of the grant; those of later grants are larger.
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
	fence, err := l.lock.Take(ctx, engine.Terms{Number: n})
	if err != nil {
		return limited(err)
	}
	return fn(ctx, fence)
}

// Acquire is AcquireN of one permit.
func (l *Limiter) Acquire(ctx context.Context) (*lockkeeper.Lease, error) { return l.AcquireN(ctx, 1) }

// AcquireN waits in the queue until it is granted n permits under both limits, and returns a lease over them. The end of the
// lease returns them to MaxConcurrent; to the window they return by the clock, whatever happens to the lease. If they
// cannot be available before the deadline of ctx because of the window, it returns a *LimitedError at once.
//
// The error is ErrInvalid if n is not between 1 and the limit or MaxConcurrent, or if the limiter has no MaxConcurrent, so
// that there is nothing to hold: use Wait then. Others are as for WaitN.
func (l *Limiter) AcquireN(ctx context.Context, n int) (*lockkeeper.Lease, error) {
	return access.Lease[lockkeeper.Lease](l.acquire(ctx, n))
}

func (l *Limiter) acquire(ctx context.Context, n int) (*engine.Lease, error) {
	if err := l.checkLease(n, "Acquire"); err != nil {
		return nil, err
	}
	h, err := l.lock.Acquire(ctx, engine.Terms{Number: n})
	return h, limited(err)
}

// TryAcquire is TryAcquireN of one permit.
func (l *Limiter) TryAcquire(ctx context.Context) (*lockkeeper.Lease, error) {
	return l.TryAcquireN(ctx, 1)
}

// TryAcquireN acquires n permits if they are available and nobody is queued. It blocks for a round trip. The error of a
// refusal is a *LimitedError if permits of the window have to return first, and ErrNotAcquired alone if it is for
// MaxConcurrent. Others are as for AcquireN.
func (l *Limiter) TryAcquireN(ctx context.Context, n int) (*lockkeeper.Lease, error) {
	if err := l.checkLease(n, "TryAcquire"); err != nil {
		return nil, err
	}
	h, err := l.lock.Try(ctx, engine.Terms{Number: n})
	return access.Lease[lockkeeper.Lease](h, limited(err))
}

// checkLease refuses to acquire where there are no leases.
func (l *Limiter) checkLease(n int, method string) error {
	if l.maxConcurrent == 0 {
		return engine.Invalid("%s without MaxConcurrent: there is nothing to hold; use Wait, Allow or Do", method)
	}
	return l.checkCount(n)
}

// limited makes a LimitedError of a refusal that is for the clock.
func limited(err error) error {
	var soon *engine.TooSoon
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
	_, err := l.lock.Limit(ctx, limit)
	return err
}

// Pause keeps all processes from taking permits for d, as when a service answers that it is overloaded. No process is asked:
// the server grants nothing by the clock until then. Waiters stay in the queue and are served in order afterwards, Allow and
// TryAcquire are refused, and so is a call at once whose context ends before; LimitedError and Result say when to try again.
// Permits that were granted before, and their leases, are not affected. They return to the window meanwhile.
//
// The pause lasts for d from when the server learns of it, by the server's clock. If another pause lasts longer, it stays. SetLimit,
// and callers with another limit, do not end it; Resume does. If the server loses it, it is over: see the package comment.
//
// d is from 1 ms to MaxPause; a fraction of a millisecond is rounded up. Pause blocks until the server has answered, until ctx
// ends, or until the keeper's retry policy gives up. The error is ErrInvalid if d is out of bounds; after any other error there
// may be a pause or not.
func (l *Limiter) Pause(ctx context.Context, d time.Duration) error {
	if d < time.Millisecond || d > MaxPause {
		return engine.Invalid("pause %v is not between 1ms and %v", d, MaxPause)
	}
	return l.lock.Pause(ctx, wholeMillis(d))
}

// Resume ends a pause, if there is one, and admits waiters before it returns. It blocks as Pause does; after an error there may
// still be a pause.
func (l *Limiter) Resume(ctx context.Context) error { return l.lock.Resume(ctx) }

// Available returns how many permits could be taken at present under the limits in force; 0 in a pause, and if a limit was lowered
// below what is taken. Waiters are served first, so a call for that many can be refused. It takes nothing. It blocks until the
// server has answered, until ctx ends, or until the keeper's retry policy gives up: for a round trip, or several if many
// thousands of permits have returned since the last call. Errors are as for Holders; see package [lockkeeper].
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
		return nil, engine.Invalid("Adopt without MaxConcurrent: there are no leases")
	}
	return access.Lease[lockkeeper.Lease](l.lock.Adopt(ctx, token))
}

// Holders returns who has permits, in any process; see package [lockkeeper]. With MaxConcurrent these are the leases.
// Without, they are the requests whose permits have not returned, and ExpiresIn is until they do.
func (l *Limiter) Holders(ctx context.Context) ([]lockkeeper.Holder, error) {
	return access.Holders[lockkeeper.Holder](l.lock.Holders(ctx))
}

// Waiters returns who waits, in the order in which they will be served; see package [lockkeeper].
func (l *Limiter) Waiters(ctx context.Context) ([]lockkeeper.Waiter, error) {
	return access.Waiters[lockkeeper.Waiter](l.lock.Waiters(ctx))
}
