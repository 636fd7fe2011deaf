package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/once"
)

// defaultPrefix is the default of Options.Prefix.
const defaultPrefix = "gocron:"

// Options are the settings of a Locker. Nil, and the zero value of each field, mean the defaults. NewLocker copies them.
type Options struct {
	// Prefix precedes the name of each job in the name of its lock. All schedulers must use the same. Default "gocron:".
	Prefix string

	// TTL is how long after a crash of the scheduler that runs a job another one may run it. The lease is renewed while the job
	// runs. From 10 ms to atLeast. Default 30 s, or atLeast if that is shorter.
	TTL time.Duration

	// OnLost is called once if the lease of a job is lost while the job runs, in another goroutine. The error matches
	// [lockkeeper.ErrLost]. Default: none.
	OnLost func(job string, err error)

	// Logger receives an error if a lease was lost, if a job was skipped because Redis did not answer, or if the end of a job could
	// not be recorded. Default slog.Default().
	Logger *slog.Logger
}

// Locker is a [gocron.Locker] for gocron.WithDistributedLocker and gocron.WithDistributedJobLocker. It is safe for concurrent use.
type Locker struct {
	_ [0]sync.Mutex // so that go vet reports copies

	k       *lockkeeper.Keeper
	atLeast time.Duration
	o       Options
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker returns a locker. A job is locked while it runs and, after a run that lasted for less than atLeast, until atLeast has
// passed since the run started, also if the process has ended by then. It must be longer than the time within which all schedulers
// start the job (their clocks and their load differ), and shorter than the interval between two runs. Nine tenths of the interval
// are a good choice, and the right one for duration jobs, which schedulers do not start together. Jobs with different intervals
// need lockers of their own, by gocron.WithDistributedJobLocker.
//
// NewLocker sends nothing. The error is [lockkeeper.ErrInvalid] if atLeast is shorter than the TTL or not from 10 ms to 365 days,
// or an option is out of range. The keeper must be closed after the scheduler was shut down.
func NewLocker(k *lockkeeper.Keeper, atLeast time.Duration, opts *Options) (*Locker, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Prefix == "" {
		o.Prefix = defaultPrefix
	}
	if o.TTL == 0 {
		o.TTL = min(lockkeeper.DefaultTTL, atLeast)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	l := &Locker{k: k, atLeast: atLeast, o: o}
	if _, err := l.once("x"); err != nil { // checks the options
		return nil, err
	}
	return l, nil
}

func (l *Locker) once(job string) (*once.Once, error) {
	return once.New(l.k, l.o.Prefix+job, l.atLeast, &once.Options{TTL: l.o.TTL})
}

// Lock locks a job, whose name is key. It does not wait for another scheduler: the error matches [lockkeeper.ErrNotAcquired] if the
// job is running elsewhere or has run within atLeast, and gocron then skips it. Other errors are those of [once.Once.Do]: gocron
// skips the job on this scheduler if Redis does not answer. They are logged. Lock blocks for a round trip, or for up to three
// attempts while Redis fails.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	log := l.o.Logger.With("job", key)
	o, err := l.once(key)
	if err != nil {
		log.Error("job skipped", "error", err)
		return nil, err
	}
	h := &lock{locker: l, job: key, log: log, granted: make(chan struct{}), unlocked: make(chan struct{}), ended: make(chan struct{})}
	go h.run(ctx, o)
	select {
	case <-h.granted:
		return h, nil
	case <-h.ended:
	}
	if h.err == nil {
		return nil, fmt.Errorf("%w: job %q is %v on another scheduler", lockkeeper.ErrNotAcquired, key, h.outcome)
	}
	log.Error("job skipped", "error", h.err)
	return nil, h.err
}

// lock is held while its run method, which has a goroutine of its own, waits for Unlock.
type lock struct {
	locker *Locker
	job    string
	log    *slog.Logger

	granted  chan struct{} // closed when the lease is granted
	unlocked chan struct{} // receives at Unlock
	ended    chan struct{} // closed when the fields below are set
	outcome  once.Outcome
	err      error
}

func (h *lock) run(ctx context.Context, o *once.Once) {
	defer close(h.ended)
	reported := false
	r, err := o.Do(ctx, func(leaseCtx context.Context, _ uint64) error {
		close(h.granted)
		lost := lockkeeper.LeaseFromContext(leaseCtx).Done()
		select {
		case <-h.unlocked:
		case <-lost:
			reported = h.reportLoss(lockkeeper.LeaseFromContext(leaseCtx).Err())
			<-h.unlocked
		}
		return nil // whether the job has succeeded is not known
	})
	if !reported {
		h.reportLoss(err)
	}
	h.outcome, h.err = r.Outcome, err
}

// reportLoss reports an error that is a loss, and returns whether it was.
func (h *lock) reportLoss(err error) bool {
	if !errors.Is(err, lockkeeper.ErrLost) {
		return false
	}
	h.log.Error("lease lost; another scheduler may run the job", "error", err)
	if h.locker.o.OnLost != nil {
		h.locker.o.OnLost(h.job, err)
	}
	return true
}

// Unlock releases the lock, or records that it is to be kept until atLeast has passed. gocron calls it once, when the job has ended,
// and ignores its error, which is therefore logged: the lease was lost, or Redis did not answer. It blocks until Redis has answered,
// for at most a second if ctx and the context of Lock, which are those of the job, have ended.
func (h *lock) Unlock(ctx context.Context) error {
	close(h.unlocked)
	<-h.ended
	if h.err != nil && !errors.Is(h.err, lockkeeper.ErrLost) {
		h.log.Error("job has run, but may be run again early", "error", h.err)
	}
	return h.err
}
