package election

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/random"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/share"
)

// ErrResign is returned by lead to stop leading while the process remains a candidate: Run releases the lock, so that another
// candidate is elected, and campaigns again after a pause. If nobody else campaigns, the same process is elected again.
var ErrResign = errors.New("lockkeeper: election: resign")

// Locker is a lock that can decide an election, because one holder has it at a time. *mutex.Mutex, *fair.Lock and *redlock.Lock
// are Lockers.
type Locker interface {
	lockkeeper.Locker

	// Holder returns who holds the lock, in any process; held is false if nobody does.
	Holder(ctx context.Context) (holder lockkeeper.Holder, held bool, err error)

	// Shares reports whether callers of a process can share a lease at the server, with one token and fence, as with Options.Linger of a
	// mutex. New refuses such a lock.
	Shares() bool
}

// Election is a process's view of an election: as a candidate by Run, and as an observer by Leader, Leading and Watch. It is
// safe for concurrent use, but only one Run may be in progress.
type Election struct {
	locker  Locker
	o       Options
	running atomic.Bool

	mu      sync.Mutex        // guards the fields below
	lease   *lockkeeper.Lease // of the current term; nil if lead is not running
	changed chan struct{}     // closed when a term begins or ends
}

// New returns the election that is decided by a lock. It sends nothing. The error is ErrInvalid if the locker is nil, if it is a
// mutex with Options.Linger, whose terms would share a lease and its fence, or if an option is out of range.
func New(locker Locker, opts *Options) (*Election, error) {
	if server.IsNil(locker) {
		return nil, server.Invalid("the locker is nil")
	}
	if locker.Shares() {
		return nil, shared(locker)
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, server.OfLock("election", locker.Name(), err)
	}
	return &Election{locker: locker, o: o, changed: make(chan struct{})}, nil
}

// shared is the error of a lock whose leases callers share. Terms could not be told apart by their fences, and
// the lock would be held after Run has returned.
func shared(locker Locker) error {
	return server.InvalidFor("election", locker.Name(), "the lock has Linger, so that terms would share a lease; set no Linger on the lock of an election")
}

// Run calls New with the default options, and then [Election.Run].
func Run(ctx context.Context, locker Locker, lead func(ctx context.Context, fence uint64) error) error {
	e, err := New(locker, nil)
	if err != nil {
		return err
	}
	return e.Run(ctx, lead)
}

// Run campaigns, and calls lead whenever this process is elected. It passes lead a child of ctx that ends when the lease is
// lost, and the lease's fence; [lockkeeper.LeaseFromContext] returns the lease. Run calls lead in the goroutine of the caller,
// never after the lease or ctx has ended, and never before an earlier call has returned.
//
// Run blocks until ctx ends, or until lead returns nil or an error without having lost the lease. The package comment says what
// happens at the end of each term. When Run returns, lead is not running, and the lock is released or will expire. While Redis
// does not answer, the release blocks until ctx or the lease has ended, or for a second if ctx has ended before.
//
// Run goes on campaigning after a lost lease and after every error of Lock that can pass, also one that requires intervention, such
// as WRONGPASS or MISCONF; Options.Retry can end it then. It returns nil if lead returned nil, and if ctx ended and nothing else
// went wrong, whatever ended it; ctx.Err() tells these apart. Otherwise the error is
//
//   - the error that lead returned, unless it is ErrResign, or ctx has ended and it matches ctx.Err() or the cause of ctx; joined
//     with the error of the release,
//   - the error of the release alone, such as ErrUnavailable: the lock stays held until its lease expires; or ErrLost, if ctx has
//     ended as well,
//   - ErrClosed: the keeper was closed,
//   - ErrInvalid: lead is nil, another Run of this Election is in progress, or the Locker has returned a lease that is
//     shared (Linger), or neither a lease nor an error,
//   - an error of Lock for which Options.Retry returned false.
func (e *Election) Run(ctx context.Context, lead func(ctx context.Context, fence uint64) error) error {
	if lead == nil {
		return server.InvalidFor("election", e.locker.Name(), "lead is nil")
	}
	if !e.running.CompareAndSwap(false, true) {
		return server.InvalidFor("election", e.locker.Name(), "another Run of this Election is in progress; use an Election for each candidate")
	}
	defer e.running.Store(false)
	var pauses random.Backoff
	var failures server.LogLimit
	for {
		lease, err := e.locker.Lock(ctx)
		switch {
		case err != nil && ctx.Err() != nil && (endedBy(ctx, err) || !final(err)):
			return nil
		case err != nil && (final(err) || e.o.Retry != nil && !e.o.Retry(err)):
			return err
		case err != nil:
			level := slog.LevelWarn
			if !transient(err) {
				level = slog.LevelError
			}
			failures.Log(e.o.Logger, level, "campaign failed, will be repeated", "election", e.locker.Name(), "error", err)
		case lease == nil:
			return server.InvalidFor("election", e.locker.Name(), "the locker, a %T, has returned neither a lease nor an error", e.locker)
		case isShared(lease): // by a Locker that wraps another
			return server.Join(shared(e.locker), lease.Release(ctx))
		default:
			began := time.Now()
			if again, err := e.term(ctx, lease, lead); !again {
				return err
			}
			if time.Since(began) >= e.o.MaxBackoff {
				pauses.Reset()
			}
		}
		if !sleep(ctx, pauses.Next(e.o.MinBackoff, e.o.MaxBackoff)) {
			return nil
		}
	}
}

// endedBy reports whether err says that ctx, which has ended, has ended.
func endedBy(ctx context.Context, err error) bool {
	return errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))
}

func isShared(lease *lockkeeper.Lease) bool {
	_, is := access.HandleOf(lease).(*share.Lease)
	return is
}

// final reports whether every Lock would return this error.
func final(err error) bool {
	return errors.Is(err, lockkeeper.ErrInvalid) || errors.Is(err, lockkeeper.ErrClosed)
}

// transient reports whether another Lock may succeed after this error without intervention.
func transient(err error) bool {
	var unacknowledged *lockkeeper.NotAcknowledgedError
	return errors.Is(err, lockkeeper.ErrUnavailable) || errors.Is(err, lockkeeper.ErrLost) || errors.Is(err, lockkeeper.ErrNotAcquired) ||
		errors.As(err, &unacknowledged)
}

// term leads while the lease is held, and releases it. It reports whether to campaign again; otherwise the error is that of Run.
func (e *Election) term(ctx context.Context, lease *lockkeeper.Lease, lead func(ctx context.Context, fence uint64) error) (again bool, err error) {
	if ctx.Err() == nil && lease.Err() == nil {
		err = e.lead(ctx, lease, lead)
	}
	ended := lease.Err() // before the release
	unreleased := lease.Release(ctx)
	e.setLease(nil)
	if errors.Is(unreleased, lockkeeper.ErrLost) {
		ended = unreleased
	}
	switch {
	case ctx.Err() != nil:
		if endedBy(ctx, err) || errors.Is(err, ErrResign) {
			err = nil
		}
		return false, server.Join(err, unreleased)
	case ended != nil:
		e.o.Logger.Warn("leadership lost", "election", e.locker.Name(), "error", ended, "returned", err)
		return true, nil
	case errors.Is(err, ErrResign):
		return true, nil
	}
	return false, server.Join(err, unreleased)
}

// lead calls the user's function. If it panics, lead releases the lease.
func (e *Election) lead(ctx context.Context, lease *lockkeeper.Lease, lead func(ctx context.Context, fence uint64) error) error {
	e.setLease(lease)
	term := lease.Context(ctx)
	done, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		e.watchStepDown(term, done)
	}()
	returned := false
	defer func() {
		close(done)
		<-watched
		if !returned {
			_ = lease.Release(ctx)
			e.setLease(nil)
		}
	}()
	err := lead(term, lease.Fence())
	returned = true
	return err
}

// watchStepDown logs a warning if the term has ended and lead goes on for too long. It returns when lead is done.
func (e *Election) watchStepDown(term context.Context, done <-chan struct{}) {
	select {
	case <-done:
		return
	case <-term.Done():
	}
	e.notify()
	timer := time.NewTimer(e.o.LongStepDown)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		e.o.Logger.Warn("leadership has ended, but the leader's function has not returned", "election", e.locker.Name(),
			"for", e.o.LongStepDown, "cause", context.Cause(term))
		<-done
	}
}

// setLease sets the lease of the current term, or nil between terms.
func (e *Election) setLease(lease *lockkeeper.Lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lease == lease {
		return
	}
	e.lease = lease
	e.notifyLocked()
}

// notify makes Watch ask who leads.
func (e *Election) notify() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notifyLocked()
}

func (e *Election) notifyLocked() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// sleep waits for d or until ctx ends, and reports whether ctx goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
