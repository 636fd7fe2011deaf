// Package joblimit limits the jobs of a job queue across all its workers: for each key, such as a customer, one at a time, at
// most n at a time, at most n in any window of time, or both. A job that may not run now has not failed: it is postponed, with the
// time after which to try again.
//
//	l, err := joblimit.Exclusive(k, nil)
//	…
//	err = l.Do(ctx, "customer:42", func(ctx context.Context) error { return export(ctx, customer) })
//	if p := (*joblimit.PostponedError)(nil); errors.As(err, &p) {
//		return requeue(job, p.RetryAfter) // it has not run
//	}
//
// The adapters for asynq and River, github.com/lockkeeper/lockkeeper/contrib/asynq and its neighbour river, are built on this
// package, and workers of other queues can use it directly. Code that should simply wait for its turn uses the locks themselves.
// Package [github.com/lockkeeper/lockkeeper] documents leases.
//
// Postponed jobs do not wait in a queue at the server: which of several postponed jobs of a key runs next depends on the job
// queue. So jobs of one key are not kept in order.
package joblimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/random"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// The defaults of Options.
const (
	defaultPrefix     = "job:"
	defaultRetryAfter = time.Second
)

// Options are the settings of a limiter. Nil, and the zero value of each field, mean the defaults. They are copied.
type Options struct {
	// Prefix precedes each key in the name of its lock. Default "job:".
	//
	// Limiters of the same constructor and prefix share the limit of a key, and so do those of Rate and ConcurrentRate; others
	// never do.
	Prefix string

	// MaxWait is how long Do waits for its turn, in the worker, before it postpones the job. Not negative. Default 0: Do does not
	// wait.
	//
	// If a rate limit cannot have a permit within that time, Do postpones the job at once.
	MaxWait time.Duration

	// RetryAfter is the least time for which a job is postponed. From 1 ms to 24 h. Default 1 s.
	//
	// It is longer if a rate limit has no permit before; up to half of it is added at random.
	RetryAfter time.Duration

	// TTL is how long a job still counts as running after its worker has crashed. Leases are renewed while jobs run. From 10 ms
	// to 365 days. Not for Rate, which has no leases. Default 30 s.
	TTL time.Duration

	// Ahead is that of [ratelimit.Options], for Rate alone. Default false.
	Ahead bool

	// Logger receives a warning if the lease of a job is lost while the job runs, and an error if jobs are postponed for a reason
	// that requires intervention. Default slog.Default().
	//
	// The error is logged once a minute.
	Logger *slog.Logger
}

// PostponedError is the error of a job that was not run and may be run later. Find it with errors.As.
type PostponedError struct {
	RetryAfter time.Duration // when to try again, at random within the bounds that Options.RetryAfter describes

	// Err is the reason. It matches lockkeeper.ErrNotAcquired if the limit is reached, and lockkeeper.ErrUnavailable if Redis
	// does not answer. It may also match ErrClosed, a *NotAcknowledgedError or ctx.Err(), or be an error reply of Redis that
	// requires intervention, such as WRONGPASS or MISCONF.
	Err error
}

// Error implements error.
func (e *PostponedError) Error() string {
	return fmt.Sprintf("lockkeeper: job postponed by %v: %v", e.RetryAfter.Round(time.Millisecond), e.Err)
}

// Unwrap returns Err.
func (e *PostponedError) Unwrap() error { return e.Err }

// Limiter decides for each key whether a job may run. It is safe for concurrent use.
type Limiter struct {
	_ [0]sync.Mutex // so that go vet reports copies

	open     func(name string) (calls, error)
	o        Options
	refusals server.LogLimit
}

// calls are those of the limit of one key. The lease is nil if nothing is held while the job runs.
type calls struct {
	wait, try func(ctx context.Context) (*lockkeeper.Lease, error)
}

// Exclusive returns a limiter that runs one job of a key at a time. It sends nothing. The error is ErrInvalid if an option is
// out of range.
func Exclusive(k *lockkeeper.Keeper, opts *Options) (*Limiter, error) {
	return newLimiter(opts, withoutAhead, func(name string, o Options) (calls, error) {
		m, err := mutex.New(k, name, &mutex.Options{TTL: o.TTL})
		if err != nil {
			return calls{}, err
		}
		return calls{m.Lock, m.TryLock}, nil
	})
}

// Concurrent returns a limiter that runs at most limit jobs of a key at a time. It sends nothing. The error is ErrInvalid if the
// limit is not from 1 to 1,000,000,000 or an option is out of range.
func Concurrent(k *lockkeeper.Keeper, limit int, opts *Options) (*Limiter, error) {
	return newLimiter(opts, withoutAhead, func(name string, o Options) (calls, error) {
		s, err := semaphore.New(k, name, limit, &semaphore.Options{TTL: o.TTL})
		if err != nil {
			return calls{}, err
		}
		return calls{s.Acquire, s.TryAcquire}, nil
	})
}

// Rate returns a limiter that starts at most limit jobs of a key in any window of time. A job that fails has used its permit.
// Rate sends nothing. The error is ErrInvalid if the limit is not from 1 to 1,000,000,000, the window is not from
// ratelimit.MinWindow to ratelimit.MaxWindow, or an option is out of range.
func Rate(k *lockkeeper.Keeper, limit int, window time.Duration, opts *Options) (*Limiter, error) {
	return newLimiter(opts, withoutTTL, func(name string, o Options) (calls, error) {
		r, err := ratelimit.New(k, name, limit, window, &ratelimit.Options{Ahead: o.Ahead})
		if err != nil {
			return calls{}, err
		}
		return calls{
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

// ConcurrentRate is Rate for a limiter that also runs at most maxConcurrent jobs of a key at a time, from 1 to 1,000,000,000.
func ConcurrentRate(k *lockkeeper.Keeper, limit int, window time.Duration, maxConcurrent int, opts *Options) (*Limiter, error) {
	return newLimiter(opts, withoutAhead, func(name string, o Options) (calls, error) {
		r, err := ratelimit.NewConcurrent(k, name, limit, window, maxConcurrent, &ratelimit.ConcurrentOptions{TTL: o.TTL})
		if err != nil {
			return calls{}, err
		}
		return calls{r.Acquire, r.TryAcquire}, nil
	})
}

// refused is the error of a rate limit that holds nothing.
type refused struct {
	name  string
	after time.Duration
}

func (e *refused) Error() string { return fmt.Sprintf("rate limit %q: %v", e.name, e.Unwrap()) }
func (e *refused) Unwrap() error { return lockkeeper.ErrNotAcquired }

func withoutAhead(o Options) error {
	if o.Ahead {
		return server.Invalid("Ahead is set, which is for Rate only; leave it false")
	}
	return nil
}

func withoutTTL(o Options) error {
	if o.TTL != 0 {
		return server.Invalid("TTL %v is set, but Rate has no leases; leave it 0", o.TTL)
	}
	return nil
}

func newLimiter(opts *Options, check func(Options) error, open func(name string, o Options) (calls, error)) (*Limiter, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Prefix == "" {
		o.Prefix = defaultPrefix
	}
	if o.RetryAfter == 0 {
		o.RetryAfter = defaultRetryAfter
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if err := check(o); err != nil {
		return nil, err
	}
	if o.MaxWait < 0 {
		return nil, server.Invalid("MaxWait %v is negative", o.MaxWait)
	}
	if o.RetryAfter < time.Millisecond || o.RetryAfter > 24*time.Hour {
		return nil, server.Invalid("RetryAfter %v is not between %v and %v", o.RetryAfter, time.Millisecond, 24*time.Hour)
	}
	l := &Limiter{open: func(name string) (calls, error) { return open(name, o) }, o: o}
	if _, err := l.open(o.Prefix + "x"); err != nil { // checks the options, which are not those of one key
		return nil, server.OfLock("", "", server.WithoutName(err))
	}
	return l, nil
}

// Do runs fn if the limit of key allows it. It passes fn a child of ctx that ends when the lease is lost;
// [lockkeeper.LeaseFromContext] returns the lease, which has the fence. With Rate there is no lease, and ctx itself is passed.
//
// If fn was run and returned an error, Do returns it, joined with the reason of the loss if the lease was lost. If fn returned
// nil, Do returns nil, even if the lease was lost: the job has been done, and running it again would not undo that. The loss is
// logged.
//
// If fn was not run, the error is a *PostponedError, whatever the reason, since a job must not count as failed, or be given up, when
// Redis refuses for a while. The only other error is ErrInvalid, for a key that is empty or no valid name.
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
	if key == "" {
		return server.Invalid("the key is empty")
	}
	name := l.o.Prefix + key
	if fn == nil {
		return server.InvalidFor("job", name, "fn is nil")
	}
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
func (c calls) acquire(ctx context.Context, maxWait time.Duration) (*lockkeeper.Lease, error) {
	switch {
	case maxWait == 0:
		return c.try(ctx)
	case maxWait > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, maxWait)
		defer cancel()
	}
	return c.wait(ctx)
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
	switch {
	case errors.Is(err, lockkeeper.ErrInvalid):
		return err
	case !passes:
		l.refusals.Log(l.o.Logger, slog.LevelError, "jobs are postponed", "error", err)
	}
	d := l.o.RetryAfter
	if errors.As(err, &limited) {
		d = max(d, limited.RetryAfter)
	}
	if errors.As(err, &none) {
		d = max(d, none.after)
	}
	return &PostponedError{d + time.Duration(random.Float64()*float64(l.o.RetryAfter/2)), err}
}
