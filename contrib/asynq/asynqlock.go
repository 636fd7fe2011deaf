// Package asynqlock limits the tasks of github.com/hibiken/asynq across all workers: one at a time, at most n at a time, or at most n
// per window of time, for each type of task or any other key.
//
//	limiter, err := joblimit.Concurrent(k, 5, nil) // or Exclusive, Rate, ConcurrentRate
//	…
//	mux.Use(asynqlock.Middleware(limiter, nil)) // by the type of task
//	config := asynq.Config{Concurrency: 20}
//	asynqlock.Configure(&config)
//	err = asynq.NewServer(redisOpt, config).Run(mux)
//
// A task that may not run now is postponed, not failed: it goes to asynq's retry set with the delay that the limiter returns,
// and neither its count of retries nor the statistics of failures change. That requires [Configure]. Package
// [github.com/lockkeeper/lockkeeper/joblimit] documents the limits and the delay.
//
// # The last attempt
//
// asynq archives a task whose attempts are used up when its handler returns any error, even one that is not a failure. So the
// middleware does not postpone a task in its last attempt (with MaxRetry(0), the first one): it waits in the worker until the
// task may run, or until its timeout or deadline has passed.
//
// # When the lease is lost
//
// The context of the handler ends, with cause [lockkeeper.ErrLost]. If the handler then returns an error, the task has failed
// and is retried by asynq's rules; if it returns nil, the task has succeeded. The fence of the lease is
// lockkeeper.LeaseFromContext(ctx).Fence().
//
// # The scheduler
//
// asynq's Scheduler enqueues every periodic task once for each host that runs it. Let package
// [github.com/lockkeeper/lockkeeper/election] decide which host does; the second example shows how.
//
// # What is not promised
//
// Tasks of a key run in no particular order. A postponed task is looked at again within Config.DelayedTaskCheckInterval (5 s) after
// its delay; set joblimit.Options.MaxWait to let a worker wait for a short time instead. asynq may run a task twice, for
// example after a crash of its worker: the lock keeps the two apart, but does not prevent the second one.
package asynqlock

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/joblimit"
)

// Middleware returns a middleware that runs each task within the limit of its key. If key is nil, the key is the type of the task.
// A task whose key is "" is not limited. It is safe for concurrent use if key is.
//
// Several limits can be combined. Put a rate limit last, nearest to the handler, since its permits are used up even if another limit
// then refuses the task.
func Middleware(l *joblimit.Limiter, key func(ctx context.Context, t *asynq.Task) string) asynq.MiddlewareFunc {
	if key == nil {
		key = func(_ context.Context, t *asynq.Task) string { return t.Type() }
	}
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			name := key(ctx, t)
			if name == "" {
				return next.ProcessTask(ctx, t)
			}
			do, last, ran := l.Do, isLastAttempt(ctx), false
			if last {
				do = l.DoWait
			}
			for {
				err := do(ctx, name, func(ctx context.Context) error {
					ran = true
					return next.ProcessTask(ctx, t)
				})
				p := isPostponed(err)
				if !last || ran || p == nil || errors.Is(err, lockkeeper.ErrClosed) {
					return err
				}
				select { // Redis refuses, or does not answer for longer than DoWait waits
				case <-time.After(p.RetryAfter):
				case <-ctx.Done():
					return err
				}
			}
		})
	}
}

// isLastAttempt reports whether asynq archives the task if its handler returns an error.
func isLastAttempt(ctx context.Context) bool {
	retried, ok := asynq.GetRetryCount(ctx)
	most, known := asynq.GetMaxRetry(ctx)
	return ok && known && retried >= most
}

// Configure sets IsFailure and RetryDelayFunc of the configuration of a server so that postponed tasks do not count as failed, and
// are delayed as the limiter says. Functions that are set already are called for all other errors; otherwise asynq's defaults apply.
// Config.ErrorHandler is called for postponed tasks, too: errors.As finds the *joblimit.PostponedError.
func Configure(c *asynq.Config) {
	isFailure, delay := c.IsFailure, c.RetryDelayFunc
	c.IsFailure = func(err error) bool {
		if isPostponed(err) != nil {
			return false
		}
		return isFailure == nil && err != nil || isFailure != nil && isFailure(err)
	}
	c.RetryDelayFunc = func(n int, err error, t *asynq.Task) time.Duration {
		if p := isPostponed(err); p != nil {
			return p.RetryAfter
		}
		if delay != nil {
			return delay(n, err, t)
		}
		return asynq.DefaultRetryDelayFunc(n, err, t)
	}
}

// isPostponed returns the error of a task that was not run, or nil.
func isPostponed(err error) *joblimit.PostponedError {
	var p *joblimit.PostponedError
	errors.As(err, &p)
	return p
}
