package ratelimit

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/ahead"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
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

// MinAheadWindow is the shortest window with Options.Ahead.
const MinAheadWindow = 200 * time.Millisecond

// MaxPause is the longest that Pause accepts.
const MaxPause = 24 * time.Hour

// ErrAboveLimit is the error of a request for more permits than the limit in force, which another process or SetLimit has made
// lower than the limit of New. Waiting does not help until the limit is raised. Nothing is taken. The error does not say the limit,
// which may be another one by the time that it is read; package admin shows the one in force.
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

// Options are the settings of a Limiter. Nil, and the zero value of each field, mean the defaults.
// New copies them.
type Options struct {
	// Ahead lets the process take permits ahead, in blocks, and decide without a round trip; see "Permits taken ahead" in the
	// package comment. Set it alike in all processes of a name. The window is at least MinAheadWindow. Default false.
	Ahead bool
}

// Kind is the kind of a rate limit in the events of hooks and for package admin.
const Kind lockkeeper.Kind = "ratelimit"

// Limiter is a rate limit on one name. It is immutable and safe for concurrent use.
type Limiter struct {
	window
}

// New returns the limiter of a name: all processes together are granted at most limit permits in any window of that length. It
// sends nothing. The limit is from 1 to 1,000,000,000. The window is from MinWindow to MaxWindow, in whole milliseconds; a
// fraction is rounded up. The error is ErrInvalid; see package [lockkeeper].
func New(k *lockkeeper.Keeper, name string, limit int, window time.Duration, opts *Options) (*Limiter, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	spec, err := newSpec(name, limit, window)
	if err != nil {
		return nil, err
	}
	l := &Limiter{}
	l.most, l.bound, l.names = limit, "the limit", access.AheadBy(k)
	if o.Ahead {
		if l.permits, err = ahead.NewPermits(access.KeeperOf(k), spec, l.names); err == nil {
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

// newSpec returns what both kinds of limiters have in common.
func newSpec(name string, limit int, window time.Duration) (keeper.Spec, error) {
	if err := checkPermits("limit", limit); err != nil {
		return keeper.Spec{}, server.OfLock(string(Kind), name, err)
	}
	if window < MinWindow || window > MaxWindow {
		return keeper.Spec{}, server.InvalidFor(Kind, name, "window %v is not between %v and %v", window, MinWindow, MaxWindow)
	}
	return keeper.Spec{Scripts: lua.RateLimit, Name: name, Limits: &keeper.Limits{Window: limit, Per: wholeMillis(window)}}, nil
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

// Allow is AllowN of one permit.
func (l *Limiter) Allow(ctx context.Context) (Result, error) { return l.AllowN(ctx, 1) }

// AllowN takes n permits if they are available and nobody is queued. It never waits for permits; it blocks for a round
// trip. A refusal is not an error: Result.Allowed says whether the permits were taken.
//
// After an error the permits were not taken, or are given back in the background. The error is ErrInvalid if n is not between 1
// and the limit of New, and ErrAboveLimit if the limit in force is lower than n. Others are as in package [lockkeeper].
func (l *Limiter) AllowN(ctx context.Context, n int) (Result, error) {
	if err := l.checkCount(n); err != nil {
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
// and the limit of New, and ErrAboveLimit if the limit in force is lower than n, or is lowered below n during the wait. Others
// are as in package [lockkeeper].
func (l *Limiter) WaitN(ctx context.Context, n int) error {
	_, err := l.take(ctx, n)
	return err
}

// Do is DoN with one permit.
func (l *Limiter) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return l.DoN(ctx, 1, fn)
}

// DoN waits for n permits as WaitN does, and calls fn with ctx and the number of the grant, which is larger than those of all
// earlier grants. Nothing is held while fn runs. If the permits are not granted, fn is not called, and the error is that of
// WaitN; otherwise it is that of fn.
func (l *Limiter) DoN(ctx context.Context, n int, fn func(ctx context.Context, fence uint64) error) error {
	if fn == nil {
		return l.lock.Invalid("fn is nil")
	}
	fence, err := l.take(ctx, n)
	if err != nil {
		return err
	}
	return fn(ctx, fence)
}

func (l *Limiter) tryTake(ctx context.Context, n int) (keeper.Quota, uint64, error) {
	if l.permits != nil {
		return l.permits.TryTake(ctx, keeper.Terms{Number: n})
	}
	return l.lock.TryTake(ctx, keeper.Terms{Number: n})
}

func (l *Limiter) take(ctx context.Context, n int) (fence uint64, err error) {
	if err := l.checkCount(n); err != nil {
		return 0, err
	}
	if l.permits != nil {
		fence, err = l.permits.Take(ctx, keeper.Terms{Number: n})
	} else {
		fence, err = l.lock.Take(ctx, keeper.Terms{Number: n})
	}
	return fence, limited(err)
}

// limited makes a LimitedError of a refusal that is for the clock.
func limited(err error) error {
	var soon *keeper.TooSoon
	if errors.As(err, &soon) {
		return &LimitedError{soon.After, soon.At, err}
	}
	return err
}

// Holders returns whose permits have not returned yet, in any process; see [lockkeeper.Holder]. ExpiresIn is how long until they
// do.
func (l *Limiter) Holders(ctx context.Context) ([]lockkeeper.Holder, error) {
	return access.Holders[lockkeeper.Holder](views.Holders(ctx, l.lock.AtServer()))
}
