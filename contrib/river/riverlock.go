// Package riverlock limits the jobs of github.com/riverqueue/river across all workers: one at a time, at most n at a time, or at most
// n per window of time, for each kind of job or any other key.
//
//	limiter, err := joblimit.Concurrent(k, 5, nil) // or Exclusive, Rate, ConcurrentRate
//	…
//	client, err := river.NewClient(driver, &river.Config{
//		Middleware: []rivertype.Middleware{riverlock.Middleware(limiter, nil)}, // by the kind of job
//		…
//	})
//
// A job that may not run now has not failed: it is snoozed (river.JobSnooze) for the time that the limiter returns, and keeps
// its attempts. Package [github.com/lockkeeper/lockkeeper/joblimit] documents the limits and that time.
//
// # When the lease is lost
//
// The context of the job ends, with cause [lockkeeper.ErrLost]. If the worker then returns an error, the job has failed and is
// retried by River's rules; if it returns nil, the job has succeeded. The fence of the lease is
// lockkeeper.LeaseFromContext(ctx).Fence().
//
// # What is not promised
//
// Jobs of a key run in no particular order. River may run a job twice, for example after a crash of its worker: the lock keeps
// the two apart, but does not prevent the second one. A job that completes itself in its own transaction, with river.JobCompleteTx,
// must check that its lease is held before it commits.
package riverlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/lockkeeper/lockkeeper/joblimit"
)

// Middleware returns a middleware that runs each job within the limit of its key. If key is nil, the key is the kind of the job. A
// job whose key is "" is not limited. It is for river.Config.Middleware, or for the Middleware method of a worker. It is safe for
// concurrent use if key is.
//
// Several limits can be combined. Put a rate limit last, nearest to the worker, since its permits are used up even if another limit
// then refuses the job.
func Middleware(l *joblimit.Limiter, key func(*rivertype.JobRow) string) rivertype.WorkerMiddleware {
	if key == nil {
		key = func(job *rivertype.JobRow) string { return job.Kind }
	}
	return river.WorkerMiddlewareFunc(func(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
		name := key(job)
		if name == "" {
			return doInner(ctx)
		}
		err := l.Do(ctx, name, doInner)
		if p := (*joblimit.PostponedError)(nil); errors.As(err, &p) {
			return fmt.Errorf("%w: %w", river.JobSnooze(p.RetryAfter), err)
		}
		return err
	})
}
