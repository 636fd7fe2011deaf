package once

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/lockkeeper/lockkeeper/lua"
)

// Options are the settings of a job. The zero value, and nil, mean the defaults. New copies them.
type Options struct {
	// TTL is how long the lease outlives a crash of the process that runs the job, and so after how long another may run
	// it. It is renewed while the job runs. Whole milliseconds, at least 10 ms, at most the period. Default 30 s.
	TTL time.Duration
}

// Once is a job that may succeed once per period. It is immutable and safe for concurrent use.
type Once struct {
	lock   *engine.Lock
	period time.Duration
}

// Outcome is what came of asking.
type Outcome int

// The outcomes.
const (
	None    Outcome = iota // nothing: Do failed before it could run the job; of Status: the job may run
	Ran                    // the job was run by this call; the error says how it ended
	Done                   // it has succeeded in this period already, so it was not run
	Running                // it is running, started by another call, so it was not run
)

// String is as in fmt.Stringer.
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

// Result is what came of asking.
type Result struct {
	Outcome Outcome

	// Next is when the job may be run again, by this process's clock: after a success or Done, when the period is over. If
	// it is Running, when its lease ends unless it is renewed, which it is as long as the job runs. Zero if it may be run at
	// once, or if that is not known.
	Next time.Time
}

// UnrecordedError is returned, to be found with errors.As, when the job has succeeded, but Redis has not confirmed that this
// was recorded. If it was, nobody runs the job until the period is over; if not, it may be run again.
type UnrecordedError struct {
	RunAgain time.Time // from when on it may be run again in this period, if it is at all
	Err      error     // what went wrong
}

// Error is as in error.
func (e *UnrecordedError) Error() string {
	return fmt.Sprintf("%v; the job has succeeded, but may be run again from %s on", e.Err, e.RunAgain.Format(time.TimeOnly))
}

// Unwrap is the cause.
func (e *UnrecordedError) Unwrap() error { return e.Err }

// New returns the job of a name. It sends nothing. The error is ErrInvalid, for a name that is empty, longer than 1024
// bytes or breaks the cluster's hash tags, a period longer than 365 days or shorter than the TTL, or an option out of range.
func New(k *lockkeeper.Keeper, name string, period time.Duration, opts *Options) (*Once, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TTL == 0 {
		o.TTL = lockkeeper.DefaultTTL
	}
	if err := engine.CheckTTL("period", period); err != nil {
		return nil, err
	}
	lock, err := access.EngineOf(k).Lock(engine.Spec{Scripts: lua.Once, Name: name, TTL: o.TTL})
	if err != nil {
		return nil, err
	}
	if period < o.TTL {
		return nil, engine.Invalid("period %v is shorter than TTL %v", period, o.TTL)
	}
	return &Once{lock, period}, nil
}

// Do runs fn if the job has neither succeeded in this period nor is running, in whichever process. It does not wait for
// another run. fn gets a child of ctx that ends when the lease is lost, and the lease's fence.
//
// When fn returns nil, its success is recorded, and the job is not run again until the period is over, counted from when
// fn was allowed to run. When fn returns an error or panics, the lease is released, and another call may run the job at
// once. ctx may have ended by then: what is to be sent is sent all the same, and its answer waited for for a second at the
// most.
//
// The error is nil if the job was run and has succeeded, or was not to be run: the Outcome tells. Otherwise:
//
//   - Outcome None: the job was not run, since it could not be learned whether it may. The error is the context's, that of
//     Redis, or lockkeeper.ErrClosed.
//   - Outcome Ran: fn's error, if it returned one. If the lease was lost meanwhile, the error is lockkeeper.ErrLost as well,
//     or alone if fn has succeeded nevertheless: another may be running the job. It is an *UnrecordedError if fn has succeeded
//     and Redis did not confirm that this was recorded, and lockkeeper.ErrReleased if the keeper was closed while fn ran. If
//     fn's error comes with another one, the release was not answered, and others may run the job when the ttl is over.
func (o *Once) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) (Result, error) {
	lease, err := o.lock.Try(ctx, engine.Terms{})
	if errors.Is(err, lockkeeper.ErrNotAcquired) && ctx.Err() == nil {
		r, err := o.Status(ctx)
		if err == nil && r.Outcome == None {
			r.Outcome = Running // until a moment ago
		}
		return r, err
	}
	if err != nil {
		return Result{}, err
	}
	returned := false
	defer func() {
		if !returned { // fn has panicked
			_ = lease.Release(ctx)
		}
	}()
	err = fn(lease.Context(ctx), lease.Fence())
	returned = true
	if err != nil {
		return Result{Outcome: Ran}, both(err, lease.Release(ctx))
	}
	next := lease.Since().Add(o.period)
	err = lease.Complete(ctx, next)
	if u := (*engine.RecordUnknown)(nil); errors.As(err, &u) {
		return Result{Outcome: Ran}, &UnrecordedError{u.LeaseEnds, u.Err}
	}
	if err != nil {
		return Result{Outcome: Ran}, err
	}
	return Result{Ran, next}, nil
}

// Status is Done or Running if the job may not be run at present, and None if it may. It changes nothing and blocks for a
// round trip. Errors are the context's, lockkeeper.ErrClosed, and those of Redis.
func (o *Once) Status(ctx context.Context) (Result, error) {
	r, _, err := o.look(ctx)
	return r, err
}

// look is Status, and what lies at the server.
func (o *Once) look(ctx context.Context) (r Result, token string, err error) {
	list, err := o.lock.Holders(ctx)
	if err != nil || len(list) == 0 {
		return Result{}, "", err
	}
	r = Result{Running, time.Now().Add(list[0].ExpiresIn)}
	if engine.IsDone(list[0].Token) {
		r.Outcome = Done
	}
	return r, list[0].Token, nil
}

// Reset deletes the record of a success, so that the job may be run again before the period is over. It does nothing if
// there is none. A run that is under way is left alone, and the error is lockkeeper.ErrNotAcquired. Other errors are the
// context's, lockkeeper.ErrClosed, and those of Redis.
func (o *Once) Reset(ctx context.Context) error {
	r, token, err := o.look(ctx)
	switch {
	case err != nil:
		return err
	case r.Outcome == Running:
		return fmt.Errorf("%w: the job is running", lockkeeper.ErrNotAcquired)
	case r.Outcome == Done:
		return o.lock.Forget(ctx, token)
	}
	return nil
}

// both is an error that is each of them, on one line.
func both(a, b error) error {
	if b == nil {
		return a
	}
	return fmt.Errorf("%w; %w", a, b)
}
