// Package joblimit limits the jobs of a job queue across all its workers: for each key, such as a customer, one at a time, at
// most n at a time, or at most n in any window of time. A job that may not run now has not failed: it is postponed, with the
// time after which to try again.
//
//	l, err := joblimit.Exclusive(k, nil)
//	…
//	err = l.Do(ctx, "customer:42", func(ctx context.Context) error { return export(ctx, customer) })
//	if p := (*joblimit.PostponedError)(nil); errors.As(err, &p) {
//		return requeue(job, p.RetryAfter) // it has not run
//	}
//
// The adapters in contrib for asynq and River are built on this package, and workers of other queues can use it directly. Code
// that should simply wait for its turn uses the locks themselves. Package [github.com/lockkeeper/lockkeeper] documents leases.
//
// Postponed jobs do not wait in a queue at the server: which of several postponed jobs of a key runs next depends on the job
// queue. So jobs of one key are not kept in order.
package joblimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// The defaults of Options.
const (
	DefaultPrefix     = "job:"
	DefaultRetryAfter = time.Second
)

// Options are the settings of a limiter. Nil, and the zero value of each field, mean the defaults.
type Options struct {
	// Prefix precedes each key in the name of its lock. Limiters of the same kind (Exclusive, Concurrent, Rate) and prefix share
	// the limit of a key; limiters of different kinds never do. Default "job:".
	Prefix string

	// MaxWait is how long Do waits for its turn before it postpones the job; it occupies the worker meanwhile. If a rate limit
	// cannot have a permit within that time, the job is postponed at once. Not negative. Default 0: Do does not wait.
	MaxWait time.Duration

	// RetryAfter is the least time for which a job is postponed; it is longer if a rate limit has no permit before. Up to half
	// of RetryAfter is added at random, so that postponed jobs do not all return at once. From 1 ms to 24 h. Default 1 s.
	RetryAfter time.Duration

	// TTL is how long a job still counts as running after its worker has crashed. Leases are renewed while jobs run. From 10 ms
	// to 365 days. It must not be set for Rate without MaxConcurrent. Default 30 s.
	TTL time.Duration

	// MaxConcurrent also bounds how many jobs of a key run at the same time. For Rate only. Default 0: no bound.
	MaxConcurrent int

	// Retain makes the process take permits ahead; see ratelimit.Options. For Rate without MaxConcurrent only. Default false.
	Retain bool

	// Logger receives a warning if the lease of a job is lost while the job runs. Default slog.Default().
	Logger *slog.Logger
}

// PostponedError is the error of a job that was not run and may be run later. Find it with errors.As.
type PostponedError struct {
	RetryAfter time.Duration // when to try again, at random within the bounds that Options.RetryAfter describes

	// Err is the reason. It matches lockkeeper.ErrNotAcquired if the limit is reached, and lockkeeper.ErrUnavailable if Redis
	// does not answer. It may also match ErrClosed, a *NotAcknowledgedError or ctx.Err().
	Err error
}

// Error implements error.
func (e *PostponedError) Error() string {
	return fmt.Sprintf("job postponed by %v: %v", e.RetryAfter.Round(time.Millisecond), e.Err)
}

// Unwrap returns Err.
func (e *PostponedError) Unwrap() error { return e.Err }

// Limiter decides for each key whether a job may run. It is immutable and safe for concurrent use.
type Limiter struct {
	open func(name string) (limit, error)
	o    Options
}

// limit is the limit of one key. The lease is nil if nothing is held while the job runs.
type limit struct {
	wait, try func(ctx context.Context) (*lockkeeper.Lease, error)
}

// Exclusive returns a limiter that runs one job of a key at a time. It sends nothing. The error is ErrInvalid if an option is
// out of range.
func Exclusive(k *lockkeeper.Keeper, opts *Options) (*Limiter, error) {
	return newLimiter(opts, withoutMaxConcurrent, func(name string, o Options) (limit, error) {
		m, err := mutex.New(k, name, &mutex.Options{TTL: o.TTL})
		if err != nil {
			return limit{}, err
		}
		return limit{m.Lock, m.TryLock}, nil
	})
}

// Concurrent returns a limiter that runs at most n jobs of a key at a time. It sends nothing. The error is ErrInvalid if n is
// not from 1 to 1,000,000,000 or an option is out of range.
func Concurrent(k *lockkeeper.Keeper, n int, opts *Options) (*Limiter, error) {
	return newLimiter(opts, withoutMaxConcurrent, func(name string, o Options) (limit, error) {
		s, err := semaphore.New(k, name, n, &semaphore.Options{TTL: o.TTL})
		if err != nil {
			return limit{}, err
		}
		return limit{s.Acquire, s.TryAcquire}, nil
	})
}

// Rate returns a limiter that starts at most n jobs of a key in any window of time. A job that fails has used its permit. Rate
// sends nothing. The error is ErrInvalid if n is not from 1 to 1,000,000,000, the window is not from ratelimit.MinWindow to
// ratelimit.MaxWindow, or an option is out of range.
func Rate(k *lockkeeper.Keeper, n int, window time.Duration, opts *Options) (*Limiter, error) {
	return newLimiter(opts, nil, func(name string, o Options) (limit, error) {
		r, err := ratelimit.New(k, name, n, window, &ratelimit.Options{MaxConcurrent: o.MaxConcurrent, TTL: o.TTL, Retain: o.Retain})
		if err != nil {
			return limit{}, err
		}
		if o.MaxConcurrent != 0 {
			return held(r.Locker(1))
		}
		return limit{
			wait: func(ctx context.Context) (*lockkeeper.Lease, error) { return nil, r.Wait(ctx) },
			try: func(ctx context.Context) (*lockkeeper.Lease, error) {
				a, err := r.Allow(ctx)
				if err == nil && !a.Allowed {
					err = &refused{name, a.RetryAfter}
				}
				return nil, err
			},
		}, nil
	})
}

func held(l lockkeeper.Locker, err error) (limit, error) {
	if err != nil {
		return limit{}, err
	}
	return limit{l.Lock, l.TryLock}, nil
}

// refused is the error of a rate limit that holds nothing.
type refused struct {
	name  string
	after time.Duration
}

func (e *refused) Error() string { return fmt.Sprintf("rate limit %q: %v", e.name, e.Unwrap()) }
func (e *refused) Unwrap() error { return lockkeeper.ErrNotAcquired }

func withoutMaxConcurrent(o Options) error {
	if o.Retain {
		return fmt.Errorf("%w: Retain is set, which is for Rate only", lockkeeper.ErrInvalid)
	}
	if o.MaxConcurrent != 0 {
		return fmt.Errorf("%w: MaxConcurrent %d is set, which is for Rate only", lockkeeper.ErrInvalid, o.MaxConcurrent)
	}
	return nil
}

func newLimiter(opts *Options, check func(Options) error, open func(name string, o Options) (limit, error)) (*Limiter, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.RetryAfter == 0 {
		o.RetryAfter = DefaultRetryAfter
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if check != nil {
		if err := check(o); err != nil {
			return nil, err
		}
	}
	if o.MaxWait < 0 {
		return nil, fmt.Errorf("%w: MaxWait %v is negative", lockkeeper.ErrInvalid, o.MaxWait)
	}
	if o.RetryAfter < time.Millisecond || o.RetryAfter > 24*time.Hour {
		return nil, fmt.Errorf("%w: RetryAfter %v is not between 1ms and 24h", lockkeeper.ErrInvalid, o.RetryAfter)
	}
	l := &Limiter{func(name string) (limit, error) { return open(name, o) }, o}
	if _, err := l.open(o.Prefix + "x"); err != nil { // checks the options
		return nil, err
	}
	return l, nil
}

// Do runs fn if the limit of key allows it. It passes fn a child of ctx that ends when the lease is lost;
// [lockkeeper.LeaseFromContext] returns the lease, which has the fence. With Rate and without MaxConcurrent there is no lease,
// and fn is passed ctx.
//
// If fn was run and returned an error, Do returns it, joined with the reason of the loss if the lease was lost. If fn returned
// nil, Do returns nil, even if the lease was lost: the job has been done, and running it again would not undo that. The loss is
// logged.
//
// If fn was not run but may be run later, the error is a *PostponedError. Other errors require intervention: ErrInvalid for a
// key that is no valid name, and error replies of Redis such as NOPERM.
//
// Do waits for other jobs for at most Options.MaxWait. In addition it blocks for a round trip, or for up to three attempts
// while Redis fails.
func (l *Limiter) Do(ctx context.Context, key string, fn func(ctx context.Context) error) error {
	return l.do(ctx, key, l.o.MaxWait, fn)
}

// DoWait is like Do, but waits for its turn until ctx ends or until the keeper's retry policy gives up. It is for a job that
// cannot be postponed, for example in its last attempt.
func (l *Limiter) DoWait(ctx context.Context, key string, fn func(ctx context.Context) error) error {
	return l.do(ctx, key, -1, fn)
}

func (l *Limiter) do(ctx context.Context, key string, maxWait time.Duration, fn func(ctx context.Context) error) error {
	name := l.o.Prefix + key
	one, err := l.open(name)
	if err != nil {
		return err
	}
	lease, err := one.acquire(ctx, maxWait)
	if err != nil {
		return l.postponed(ctx, err)
	}
	if lease == nil {
		return fn(ctx)
	}
	defer lease.Release(ctx) // of a panic
	err = fn(lease.Context(ctx))
	lost := lease.Release(ctx)
	if !errors.Is(lost, lockkeeper.ErrLost) {
		return err // a release that was not answered is retried until the lease expires
	}
	l.o.Logger.Warn("lease lost while the job was running; another one may have run", "job", name, "error", lost)
	if err != nil && !errors.Is(err, lockkeeper.ErrLost) {
		err = fmt.Errorf("%w; %w", err, lost)
	}
	return err
}

// acquire waits for maxWait, or without end if that is negative.
func (l limit) acquire(ctx context.Context, maxWait time.Duration) (*lockkeeper.Lease, error) {
	switch {
	case maxWait == 0:
		return l.try(ctx)
	case maxWait > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, maxWait)
		defer cancel()
	}
	return l.wait(ctx)
}

// postponed returns the error of an acquisition that failed.
func (l *Limiter) postponed(ctx context.Context, err error) error {
	var (
		unacknowledged *lockkeeper.NotAcknowledgedError
		limited        *ratelimit.LimitedError
		none           *refused
	)
	passes := errors.Is(err, lockkeeper.ErrNotAcquired) || errors.Is(err, lockkeeper.ErrUnavailable) || errors.Is(err, lockkeeper.ErrClosed) ||
		errors.As(err, &unacknowledged) || ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)
	if !passes {
		return err
	}
	d := l.o.RetryAfter
	if errors.As(err, &limited) {
		d = max(d, limited.RetryAfter)
	}
	if errors.As(err, &none) {
		d = max(d, none.after)
	}
	return &PostponedError{d + rand.N(l.o.RetryAfter/2+1), err}
}
