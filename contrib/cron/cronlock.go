// Package cronlock runs the jobs of github.com/robfig/cron/v3 once per slot, on one of several hosts that all have the
// scheduler. A slot is a time at which a job is due.
//
//	schedule, err := cron.ParseStandard("0 2 * * *")
//	…
//	job, err := cronlock.New(k, "nightly-report", cronlock.Period(schedule), makeReport, nil)
//	…
//	c.Schedule(schedule, job)
//
// Each host has the same jobs with the same names. When a job is due, each host asks Redis; one runs the job, and the others
// skip it. A lock alone would not be enough: it is free again when a short job has ended, and a host whose clock is a little
// late would run the job again. So a success is recorded for the job's period, by package
// [github.com/lockkeeper/lockkeeper/once], whose documentation says what happens when a job fails or a host crashes.
//
// # Which period
//
// The period starts when a run starts. It must be longer than the time within which all hosts start the job, which is how much
// their clocks and their load differ, and shorter than the interval between two slots, by the same amount. [Period] returns nine
// tenths of the shortest interval of a schedule.
//
// With a schedule such as "@every 5m" each host counts from its own start, so the hosts are not due together. With a period of
// nine tenths of the interval the job nevertheless runs once per interval, on the host that ran it last, or on another one after
// that host has gone.
//
// # When the lease is lost
//
// A run holds a lease, which is renewed. If it is lost, because the process was paused or Redis did not answer for the TTL,
// another host may run the job. The context of a job made by [New] then ends, with cause [lockkeeper.ErrLost]. A [cron.Job] that is
// wrapped by [Wrap] has no context and cannot be stopped: the loss is logged, and Options.OnLost is called.
//
// # What is not promised
//
// That a slot is not missed: if no host is running, if Redis does not answer (see Options.RunIfUnavailable), or if the job
// fails and no other host is due later in the slot. That a job never runs twice in a slot: see the failures in package once. So
// a job must tolerate being run again.
package cronlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/once"
)

// Options are the settings of a job. Nil, and the zero value of each field, mean the defaults. New and Wrap copy them.
type Options struct {
	// TTL is how long after a crash of the host that runs the job another host may run it. The lease is renewed while the job
	// runs. From 10 ms to the period. Default 30 s, or the period if that is shorter.
	TTL time.Duration

	// RunIfUnavailable runs the job also if Redis does not answer when it is due, so possibly on every host, without a lease: its fence
	// is 0. Default false: the job is skipped on hosts that cannot reach Redis.
	RunIfUnavailable bool

	// BaseContext is the parent of the contexts of runs. If it has ended, the job is not run. Default context.Background().
	BaseContext context.Context

	// OnLost is called once if the lease of a run is lost, in another goroutine; Run waits for it. The error matches
	// [lockkeeper.ErrLost]. Default: none.
	OnLost func(name string, err error)

	// Logger receives an error if a job failed, lost its lease, or was skipped since Redis did not answer, and a debug message if
	// another host runs it. Default slog.Default().
	Logger *slog.Logger
}

// New returns a job that runs fn once per period across all hosts. Its Run method asks Redis, and returns when the job has been
// skipped or fn has returned. fn gets a context that ends when the lease is lost, and the fence of the lease. An error that fn
// returns is logged, and the job may then be run again by a host that is due later.
//
// A panic of fn releases the lease and continues: put [cron.Recover] around the job if the process should survive it.
//
// The error is [lockkeeper.ErrInvalid] if fn is nil, the name or the period is not valid (see [once.New]), or an option is out of
// range. New sends nothing. The keeper must be closed after the scheduler was stopped and its jobs have ended.
func New(k *lockkeeper.Keeper, name string, period time.Duration, fn func(ctx context.Context, fence uint64) error, opts *Options) (cron.Job, error) {
	if fn == nil {
		return nil, fmt.Errorf("cronlock: %w: fn of the job %q is nil", lockkeeper.ErrInvalid, name)
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TTL == 0 {
		o.TTL = min(lockkeeper.DefaultTTL, period)
	}
	if o.BaseContext == nil {
		o.BaseContext = context.Background()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	lock, err := once.New(k, name, period, &once.Options{TTL: o.TTL})
	if err != nil {
		return nil, err
	}
	return &job{name, lock, fn, o}, nil
}

// Wrap returns a wrapper that runs a job once per period across all hosts, as the job of New, for use with [cron.NewChain]. Since a
// name belongs to one job, it may be applied to one job, not to a chain that all jobs have:
//
//	c.AddJob("0 2 * * *", cron.NewChain(cron.Recover(logger), w).Then(job))
//
// A run that returns is a success. The errors are those of New.
func Wrap(k *lockkeeper.Keeper, name string, period time.Duration, opts *Options) (cron.JobWrapper, error) {
	run := func(context.Context, uint64) error { return nil }
	j, err := New(k, name, period, run, opts)
	if err != nil {
		return nil, err
	}
	return func(inner cron.Job) cron.Job {
		wrapped := *j.(*job)
		wrapped.fn = func(context.Context, uint64) error {
			inner.Run()
			return nil
		}
		return &wrapped
	}, nil
}

type job struct {
	name string
	once *once.Once
	fn   func(ctx context.Context, fence uint64) error
	Options
}

// Run implements cron.Job.
func (j *job) Run() {
	log := j.Logger.With("job", j.name)
	var failed error // of fn
	lost := func(err error) {
		log.Error("lease lost; another host may run the job", "error", err)
		if j.OnLost != nil {
			j.OnLost(j.name, err)
		}
	}
	reported := false
	r, err := j.once.Do(j.BaseContext, func(ctx context.Context, fence uint64) error {
		stop := onLoss(ctx, lost)
		defer func() { reported = stop() }()
		failed = j.fn(ctx, fence)
		return failed
	})
	if errors.Is(err, lockkeeper.ErrLost) && !reported {
		lost(err)
	}
	switch {
	case failed != nil:
		log.Error("job failed", "error", err)
	case r.Outcome == once.Ran && err != nil && !errors.Is(err, lockkeeper.ErrLost):
		log.Error("job succeeded, but may be run again", "error", err)
	case r.Outcome == once.Ran:
	case err == nil:
		log.Debug("job skipped", "outcome", r.Outcome, "next", r.Next)
	case j.RunIfUnavailable && errors.Is(err, lockkeeper.ErrUnavailable) && !errors.Is(err, lockkeeper.ErrNotAcquired) && j.BaseContext.Err() == nil:
		log.Warn("job runs without a lease", "error", err)
		if err := j.fn(j.BaseContext, 0); err != nil {
			log.Error("job failed", "error", err)
		}
	default:
		log.Error("job skipped", "error", err)
	}
}

// onLoss calls lost in a goroutine of its own if the lease whose context is ctx is lost before stop is called. stop waits for that
// call, if there was one, and reports whether there was.
func onLoss(ctx context.Context, lost func(error)) (stop func() bool) {
	done, found := make(chan struct{}), false
	cancel := context.AfterFunc(ctx, func() {
		defer close(done)
		if cause := context.Cause(ctx); errors.Is(cause, lockkeeper.ErrLost) {
			found = true
			lost(cause)
		}
	})
	return func() bool {
		if !cancel() {
			<-done
		}
		return found
	}
}

// Period returns a period for jobs of a schedule: nine tenths of the shortest interval between two of its next thousand slots, but
// no longer than 365 days, which is the longest period. It returns 365 days for a schedule with fewer than two slots.
//
// When clocks are set back, a schedule can have slots of the same time of day again, such as 1:30 in summer time and in standard time.
// The interval between the last slot before and the first one after does not count, so a daily job runs once on that day.
func Period(s cron.Schedule) time.Duration {
	const slots, longest = 1000, 365 * 24 * time.Hour
	shortest := time.Duration(longest)
	at := s.Next(time.Now())
	for range slots {
		next := s.Next(at)
		if at.IsZero() || next.IsZero() {
			break
		}
		if wall(s, next).After(wall(s, at)) {
			shortest = min(shortest, (next.Sub(at) * 9 / 10).Truncate(time.Millisecond))
		}
		at = next
	}
	return shortest
}

// wall returns what clocks show at a slot, in the schedule's time zone, as a time that goes back when they do.
func wall(s cron.Schedule, t time.Time) time.Time {
	if spec, ok := s.(*cron.SpecSchedule); ok && spec.Location != time.Local { // time.Local: that of t
		t = t.In(spec.Location)
	}
	_, offset := t.Zone()
	return t.Add(time.Duration(offset) * time.Second)
}
