package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/election"
)

// ErrNotLeader is the error of IsLeader if another scheduler leads, or it is not known yet who does.
var ErrNotLeader = errors.New("gocronlock: this scheduler is not the leader")

// firstAnswer is how long IsLeader waits for the first answer of Redis.
const firstAnswer = time.Second

// Elector is a [gocron.Elector] for gocron.WithDistributedElector: the scheduler that leads runs all jobs. It is safe for concurrent
// use.
type Elector struct {
	log     *slog.Logger
	cancel  context.CancelFunc
	ended   chan struct{} // closed when the campaign has ended
	decided chan struct{} // closed when the first question has been answered
	decide  func()
	lease   atomic.Pointer[lockkeeper.Lease] // of the current or last term; nil before the first
}

var _ gocron.Elector = (*Elector)(nil)

// ElectorOptions are the settings of an Elector. Nil, and the zero value of the field, mean the defaults.
type ElectorOptions struct {
	// Logger receives losses and errors. Default slog.Default().
	Logger *slog.Logger
}

// NewElector returns an elector that campaigns with a mutex, a fair lock or a redlock, in the background, until Close. All
// schedulers must use the same lock. The error is [lockkeeper.ErrInvalid] if the locker is nil, or is a mutex with Options.Linger.
func NewElector(locker election.Locker, opts *ElectorOptions) (*Elector, error) {
	log := slog.Default()
	if opts != nil && opts.Logger != nil {
		log = opts.Logger
	}
	e := &Elector{log: log, ended: make(chan struct{}), decided: make(chan struct{})}
	e.decide = sync.OnceFunc(func() { close(e.decided) })
	if _, err := election.New(locker, nil); err != nil { // before it is wrapped, in which a nil pointer would not be found
		return nil, err
	}
	campaign, err := election.New(&tryFirst{Locker: locker, refused: e.decide}, &election.Options{Logger: log, Retry: e.goOn})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	go e.run(ctx, campaign)
	return e, nil
}

// goOn goes on campaigning after every error. One that requires intervention is an answer of Redis, for which IsLeader need not wait.
func (e *Elector) goOn(err error) bool {
	if !errors.Is(err, lockkeeper.ErrUnavailable) {
		e.decide()
	}
	return true
}

// run campaigns until ctx ends or the keeper is closed.
func (e *Elector) run(ctx context.Context, campaign *election.Election) {
	defer close(e.ended)
	err := campaign.Run(ctx, func(ctx context.Context, _ uint64) error {
		e.lease.Store(lockkeeper.LeaseFromContext(ctx))
		e.decide()
		<-ctx.Done()
		return ctx.Err()
	})
	e.decide()
	if err != nil && ctx.Err() == nil && !errors.Is(err, lockkeeper.ErrClosed) {
		e.log.Error("campaign ended", "error", err)
	}
}

// IsLeader returns nil if this scheduler leads, and ErrNotLeader otherwise. It sends nothing and checks the deadline of the
// lease, so it is right even after a pause of the process. It blocks only until Redis has answered for the first time, for at
// most a second or until ctx ends, so that jobs that start with the scheduler are not skipped on all of them.
func (e *Elector) IsLeader(ctx context.Context) error {
	select {
	case <-e.decided:
	default:
		wait := time.NewTimer(firstAnswer)
		defer wait.Stop()
		select {
		case <-e.decided:
		case <-wait.C:
			return fmt.Errorf("%w: Redis has not answered yet", ErrNotLeader)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrNotLeader, ended(ctx))
		}
	}
	if e.lease.Load().Err() != nil {
		return ErrNotLeader
	}
	return nil
}

// Lease returns the lease of the leader if this scheduler leads or has led, and otherwise nil. All methods of a nil lease work. gocron
// cannot end the context of a job when leadership is lost, so a job that must stop then uses the context of the lease:
//
//	gocron.NewTask(func(ctx context.Context) error {
//		lease := elector.Lease()
//		return export(lease.Context(ctx), lease.Fence())
//	})
func (e *Elector) Lease() *lockkeeper.Lease { return e.lease.Load() }

// Close ends the candidacy: it releases leadership, so that another scheduler leads at once, and returns when the campaign has
// ended. Call it after the scheduler was shut down, so that none of its jobs is running, and before the keeper is closed. It may
// be called again.
func (e *Elector) Close() {
	e.cancel()
	<-e.ended
}

// tryFirst is a lock that says when it is found to be held elsewhere.
type tryFirst struct {
	election.Locker
	refused func()
	tried   bool
}

// Lock implements lockkeeper.Locker. It is called by one goroutine.
func (l *tryFirst) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	if !l.tried {
		lease, err := l.TryLock(ctx)
		if err == nil || !errors.Is(err, lockkeeper.ErrNotAcquired) || ctx.Err() != nil {
			return lease, err
		}
		l.tried = true
		l.refused()
	}
	return l.Locker.Lock(ctx)
}

// ended returns an error that matches ctx.Err() and the cause of ctx, which has ended.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}
