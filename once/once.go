package once

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/lua"
)

// Options are the settings of a job. Nil, and the zero value of each field, mean the defaults. New copies them.
type Options struct {
	// TTL is how long the lease lasts without renewal, and so how long after a crash another process may run the job. The
	// lease is renewed while the job runs. From 10 ms to the period. Default 30 s ([lockkeeper.DefaultTTL]).
	TTL time.Duration
}

// Kind is the kind of a job in the events of hooks and for package admin.
const Kind lockkeeper.Kind = "once"

// Once is a job that may succeed at most once per period. It is immutable and safe for concurrent use.
type Once struct {
	_ [0]sync.Mutex // so that go vet reports copies

	lock   *keeper.Lock
	period time.Duration
}

// Outcome says whether the job was run.
type Outcome int

// The outcomes.
const (
	None    Outcome = iota // Do: it failed before the job was run; Status: the job may be run
	Ran                    // this call ran the job; the error says how it ended
	Done                   // the job has already succeeded in this period, and was not run
	Running                // another call is running the job, and it was not run again
)

// String implements fmt.Stringer.
func (o Outcome) String() string {
	switch o {
	case None:
		return "none"
	case Ran:
		return "ran"
	case Done:
		return "done"
	case Running:
		return "running"
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}

// Result is the result of Do and Status.
type Result struct {
	Outcome Outcome

	// Next is when the job may be run again, by this process's clock. For Done, and for Ran after a success, it is the end of
	// the period. For Running it is when the lease expires if it is not renewed, which it is while the job runs. If somebody has
	// taken the key's expiry away, these are counted from now. It is zero for other outcomes.
	Next time.Time
}

// UnrecordedError is the error of Do if the job has succeeded but Redis has not confirmed the record of the success. Find it
// with errors.As. If the record was written, the job is not run again until the period ends; otherwise it may be run again.
type UnrecordedError struct {
	RunAgain time.Time // the earliest time at which the job may be run again in this period
	Err      error     // why there was no confirmation
}

// Error implements error.
func (e *UnrecordedError) Error() string {
	return fmt.Sprintf("%v; the job has succeeded, but may be run again from %s on", e.Err, e.RunAgain.Format(time.TimeOnly))
}

// Unwrap returns Err.
func (e *UnrecordedError) Unwrap() error { return e.Err }

// New returns the job of a name, which may succeed once per period. It sends nothing. The error is ErrInvalid; see package
// [lockkeeper]. It is also ErrInvalid if the period is longer than 365 days or shorter than the TTL.
func New(k *lockkeeper.Keeper, name string, period time.Duration, opts *Options) (*Once, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TTL == 0 {
		o.TTL = lockkeeper.DefaultTTL
	}
	if err := server.CheckTTL("period", period); err != nil {
		return nil, server.OfLock(string(Kind), name, err)
	}
	lock, err := access.KeeperOf(k).Lock(keeper.Spec{Scripts: lua.Once, Name: name, TTL: o.TTL})
	if err != nil {
		return nil, err
	}
	if period < o.TTL {
		return nil, server.InvalidFor(Kind, name, "period %v is shorter than TTL %v; choose a shorter TTL", period, o.TTL)
	}
	return &Once{lock: lock, period: period}, nil
}

// Do runs fn unless the job has already succeeded in this period or is running, in any process. It does not wait for another
// run. Do passes fn a child of ctx that is canceled when the lease is lost, and the lease's fence.
//
// If fn returns nil, the success is recorded, and the job is not run again until the period ends, which starts when the
// lease is granted. If fn returns an error or panics, the lease is released, and another call may run the job at once. If
// ctx has ended by then, the record or the release is sent nevertheless, and Do waits for the answer for at most a second.
//
// The error is nil if the job has succeeded, or was not run because it is Done or Running. Otherwise:
//
//   - Outcome None: the job was not run, because it is not known whether it may be. The error is the context's, that of Redis,
//     or matches lockkeeper.ErrClosed. It also matches lockkeeper.ErrNotAcquired if the job was running or done, but not which.
//   - Outcome Ran: the error matches that of fn, if fn returned one. It matches lockkeeper.ErrLost if the lease was lost
//     meanwhile, even if fn succeeded: another process may be running the job. It is an *UnrecordedError if fn succeeded but
//     Redis did not confirm the record. It matches lockkeeper.ErrReleased if fn succeeded but the keeper was closed
//     meanwhile. If it matches another error besides that of fn, the release was not answered, and the job may be run again
//     when the lease expires.
func (o *Once) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) (Result, error) {
	if fn == nil {
		return Result{}, o.lock.Invalid("fn is nil")
	}
	h, err := o.lock.Try(ctx, keeper.Terms{})
	if errors.Is(err, lockkeeper.ErrNotAcquired) && ctx.Err() == nil {
		r, found, unknown := o.read(ctx)
		switch {
		case unknown != nil:
			return r, fmt.Errorf("%w, and whether it is running or done is not known: %w", err, unknown)
		case r.Outcome == None:
			r = Result{Running, time.Now()} // it was running when this call was refused
		case r.Outcome == Done && found.ExpiresIn < 0:
			_ = o.lock.Keep(ctx, found.Token, o.period) // if that fails, the next call does it
			o.observeSuccess(ctx, time.Time{})
		case r.Outcome == Done:
			o.observeSuccess(ctx, r.Next)
		}
		return r, nil
	}
	if err != nil {
		return Result{}, o.lock.AlsoEnded(ctx, err) // it may have ended just now
	}
	returned := false
	defer func() {
		if !returned { // fn has panicked
			_ = h.Release(ctx)
		}
	}()
	err = fn(h.Context(ctx), h.Fence())
	returned = true
	if err != nil {
		return Result{Outcome: Ran}, lifecycle.JoinRelease(err, h, h.Release(ctx))
	}
	next := h.Since().Add(o.period)
	err = h.Complete(ctx, next)
	if u := (*keeper.RecordUnknown)(nil); errors.As(err, &u) {
		return Result{Outcome: Ran}, &UnrecordedError{u.LeaseEnds, u.Err}
	}
	if err != nil {
		return Result{Outcome: Ran}, err
	}
	return Result{Ran, next}, nil
}

// observeSuccess reports the success of an earlier run, whose period ends at that time; zero: it is not known when.
func (o *Once) observeSuccess(ctx context.Context, end time.Time) {
	e := o.lock.Event(keeper.Succeeded, nil)
	e.Context = ctx
	if !end.IsZero() {
		e.Duration = max(o.period-time.Until(end), 0)
	}
	o.lock.Observe(e)
}

// Status returns Done or Running if the job may not be run at present, and None if it may. It changes nothing. It blocks for a
// round trip, or until ctx ends. The error is the context's, that of Redis, or matches lockkeeper.ErrClosed.
func (o *Once) Status(ctx context.Context) (Result, error) {
	r, _, err := o.read(ctx)
	return r, err
}

// read returns the status of the job, and the lease or record at the server. A key without an expiry is given one by the next Do.
func (o *Once) read(ctx context.Context) (r Result, found views.Holder, err error) {
	list, err := views.Holders(ctx, o.lock.AtServer())
	if err != nil || len(list) == 0 {
		return Result{}, found, err
	}
	found = list[0]
	r, lasts := Result{Outcome: Running}, claim.Duration(o.lock.TTL)
	if protocol.IsRecord(found.Token) {
		r.Outcome, lasts = Done, o.period
	}
	if found.ExpiresIn >= 0 {
		lasts = found.ExpiresIn
	}
	r.Next = time.Now().Add(lasts)
	return r, found, nil
}

// Reset deletes the record of a success, so that the job may be run again before the period ends. It does nothing if there
// is none. It blocks until Redis has answered, until ctx ends, or until the retry policy gives up. If the job is running,
// Reset does not affect it and the error matches lockkeeper.ErrNotAcquired. Other errors are the context's, those of Redis,
// or match lockkeeper.ErrClosed.
func (o *Once) Reset(ctx context.Context) error {
	r, found, err := o.read(ctx)
	switch {
	case err != nil:
		return err
	case r.Outcome == Running:
		return o.lock.Fail(lockkeeper.ErrNotAcquired, errors.New("the job is running; wait until it has ended"))
	case r.Outcome == Done:
		return o.lock.Forget(ctx, found.Token)
	}
	return nil
}
