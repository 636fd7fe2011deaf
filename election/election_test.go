package election_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/election"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
)

const ttl = 3 * time.Second

// bubble runs a test with a server under virtual time.
func bubble(t *testing.T, test func(t *testing.T, s *lockkeepertest.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, lockkeepertest.New(t)) })
}

func newFair(t *testing.T, k *lockkeeper.Keeper) *fair.Lock {
	t.Helper()
	return must.Get(fair.New(k, "boss", &fair.Options{TTL: ttl}))(t)
}

// terms records who leads, and that nobody leads while another one has a lease that is held.
type terms struct {
	mu     sync.Mutex
	last   *lockkeeper.Lease
	begun  int
	starts chan start
}

// start is the start of a term. lead returns what is sent to end.
type start struct {
	candidate int
	ctx       context.Context
	fence     uint64
	end       chan error
}

func newTerms() *terms { return &terms{starts: make(chan start, 1000)} }

// lead returns a function that leads until it is told to end, or, unless it is stubborn, until its context ends.
func (ts *terms) lead(t *testing.T, candidate int, stubborn bool) func(context.Context, uint64) error {
	return func(ctx context.Context, fence uint64) error {
		lease := lockkeeper.LeaseFromContext(ctx)
		check.That(t, lease.Fence() == fence && ctx.Err() == nil,
			"lead has fence %d, its lease %d, and its context %v", fence, lease.Fence(), ctx.Err())
		ts.mu.Lock()
		check.That(t, ts.last.Err() != nil, "candidate %d leads while the lease of fence %d is held", candidate, ts.last.Fence())
		check.That(t, fence > ts.last.Fence(), "fence %d after %d", fence, ts.last.Fence())
		ts.last = lease
		ts.begun++
		ts.mu.Unlock()
		end := make(chan error)
		ts.starts <- start{candidate, ctx, fence, end}
		if stubborn {
			return <-end
		}
		select {
		case err := <-end:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (ts *terms) count() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.begun
}

// run starts an election in the background. The channel gets its result.
func run(ctx context.Context, e *election.Election, lead func(context.Context, uint64) error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- e.Run(ctx, lead) }()
	return result
}

func newElection(t *testing.T, l election.Locker, o *election.Options) *election.Election {
	t.Helper()
	if o == nil {
		o = &election.Options{Logger: slog.New(slog.DiscardHandler)}
	}
	return must.Get(election.New(l, o))(t)
}

func TestOneLeadsAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		ts := newTerms()
		var cancels []context.CancelFunc
		var results []<-chan error
		for i := range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			cancels = append(cancels, cancel)
			results = append(results, run(ctx, newElection(t, newFair(t, s.Keeper(t, nil)), nil), ts.lead(t, i, false)))
			s.RequireHeld(t, "boss")
			s.RequireWaiting(t, "boss", i)
		}
		for i := range 3 { // in order of arrival, each as soon as the one before has stepped down
			term := <-ts.starts
			check.That(t, term.candidate == i, "candidate %d leads instead of %d", term.candidate, i)
			time.Sleep(10 * ttl)
			err := term.ctx.Err()
			check.That(t, err == nil, "the term has ended: %v", err)
			n := ts.count()
			check.That(t, n == i+1, "%d terms", n)
			cancels[i]()
			must.Report(t, <-results[i])
		}
		s.RequireFree(t, "boss")
	})
}

func TestCampaignsAgainAfterLoss(t *testing.T) {
	for name, fault := range map[string]func(t *testing.T, s *lockkeepertest.Server){
		"lost": func(t *testing.T, s *lockkeepertest.Server) { s.LoseLease(t, "boss") },
		"frozen": func(t *testing.T, s *lockkeepertest.Server) {
			s.FreezeHolder(t, "boss")
			time.Sleep(2 * ttl)
			s.Restore()
		},
		"stolen": func(t *testing.T, s *lockkeepertest.Server) {
			thief := s.StealLock(t, "boss")
			time.Sleep(2 * ttl)
			_ = thief.Release(t.Context())
		},
		"outage": func(_ *testing.T, s *lockkeepertest.Server) { s.Unreachable(); time.Sleep(20 * ttl); s.Restore() },
	} {
		for returns, err := range map[string]error{"nil": nil, "error": errors.New("disk full"), "resign": election.ErrResign} {
			t.Run(name+"/"+returns, func(t *testing.T) {
				bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
					ts := newTerms()
					ctx, cancel := context.WithCancel(t.Context())
					result := run(ctx, newElection(t, newFair(t, s.Keeper(t, nil)), nil), ts.lead(t, 0, true))
					first := <-ts.starts
					go fault(t, s)
					<-first.ctx.Done()
					cause := context.Cause(first.ctx)
					check.That(t, errors.Is(cause, lockkeeper.ErrLost), "the term has ended because of %v", cause)
					first.end <- err
					second := <-ts.starts
					cancel()
					second.end <- nil
					must.Report(t, <-result)
					s.RequireFree(t, "boss")
				})
			})
		}
	}
}

// TestLockIsHeldUntilLeadReturns checks that the end of Run's context does not let anybody else lead before lead has returned.
func TestLockIsHeldUntilLeadReturns(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		ts, log := newTerms(), &quiet.Buffer{}
		ctx, cancel := context.WithCancel(t.Context())
		o := &election.Options{Logger: slog.New(slog.NewTextHandler(log, nil)), LongStepDown: ttl}
		slow := run(ctx, newElection(t, newFair(t, s.Keeper(t, nil)), o), ts.lead(t, 0, true))
		term := <-ts.starts
		next := run(t.Context(), newElection(t, newFair(t, s.Keeper(t, nil)), nil), ts.lead(t, 1, false))
		s.RequireWaiting(t, "boss", 1)
		cancel()
		<-term.ctx.Done()
		time.Sleep(ttl / 2)
		check.That(t, log.String() == "", "logged too early: %s", log)
		time.Sleep(10 * ttl)
		n := ts.count()
		check.That(t, n == 1, "%d terms while the first lead is running", n)
		check.That(t, strings.Count(log.String(), "has not returned") == 1 && strings.Contains(log.String(), "election=boss"),
			"logged: %q", log)
		flushed := errors.New("cannot flush")
		term.end <- flushed
		err := <-slow
		check.That(t, err == flushed, "Run: %v", err)
		second := <-ts.starts
		second.end <- nil
		must.Report(t, <-next)
	})
}

// TestNoCampaignWhileLeadGoesOn checks that a lead that ignores its loss keeps its process from campaigning, and nobody else.
func TestNoCampaignWhileLeadGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		ts := newTerms()
		stuck := newElection(t, newFair(t, s.Keeper(t, nil)), nil)
		ctx, cancel := context.WithCancel(t.Context())
		result := run(ctx, stuck, ts.lead(t, 0, true))
		first := <-ts.starts
		other := run(ctx, newElection(t, newFair(t, s.Keeper(t, nil)), nil), ts.lead(t, 1, false))
		s.RequireWaiting(t, "boss", 1)
		s.LoseLease(t, "boss")
		second := <-ts.starts
		check.That(t, second.candidate == 1, "candidate %d leads", second.candidate)
		time.Sleep(10 * ttl)
		s.RequireWaiting(t, "boss", 0)
		if stuck.Leading() || ts.count() != 2 {
			t.Errorf("leading: %v, %d terms", stuck.Leading(), ts.count())
		}
		first.end <- nil
		s.RequireWaiting(t, "boss", 1)
		cancel()
		for _, r := range []<-chan error{result, other} {
			must.Report(t, <-r)
		}
	})
}

func TestLeadReturns(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		k := s.Keeper(t, nil)
		e := newElection(t, newFair(t, k), nil)
		full := errors.New("disk full")
		for _, want := range []error{nil, full, lockkeeper.ErrUnavailable} { // the last is of another lock, used by lead
			err := e.Run(t.Context(), func(context.Context, uint64) error { return want })
			check.That(t, err == want, "Run returned %v after %v", err, want)
			s.RequireFree(t, "boss")
		}
		n := 0
		err := e.Run(t.Context(), func(context.Context, uint64) error {
			if n++; n < 5 {
				return election.ErrResign
			}
			return nil
		})
		check.That(t, err == nil && n == 5, "Run: %v after %d terms", err, n)
		s.RequireFree(t, "boss")
		func() {
			defer func() {
				r := recover()
				check.That(t, r == "broken", "recovered %v", r)
			}()
			_ = e.Run(t.Context(), func(context.Context, uint64) error { panic("broken") })
		}()
		check.That(t, !e.Leading(), "leading after a panic")
		s.RequireFree(t, "boss")
		err = e.Run(t.Context(), func(ctx context.Context, _ uint64) error {
			must.Report(t, k.Close())
			return context.Cause(ctx)
		})
		check.Is(t, err, lockkeeper.ErrClosed, "the error")
		s.RequireFree(t, "boss")
	})
}

// scripted is a Locker that returns one error after another, and then asks another one.
type scripted struct {
	election.Locker
	errs  []error
	calls []time.Time
}

func (l *scripted) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	l.calls = append(l.calls, time.Now())
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, err
	}
	return l.Locker.Lock(ctx)
}

func TestErrorsOfLock(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		l := newFair(t, s.Keeper(t, nil))
		done := func(context.Context, uint64) error { return nil }
		var transient []error
		for range 10 {
			transient = append(transient, lockkeeper.ErrUnavailable, &lockkeeper.NotAcknowledgedError{Wanted: 1})
		}
		x := &scripted{Locker: l, errs: transient}
		o := &election.Options{MinBackoff: time.Second, MaxBackoff: 10 * time.Second, Logger: slog.New(slog.DiscardHandler)}
		must.Report(t, newElection(t, x, o).Run(t.Context(), done))
		check.That(t, len(x.calls) == 21, "%d calls", len(x.calls))
		for i := range len(x.calls) - 1 {
			if pause := x.calls[i+1].Sub(x.calls[i]); pause < time.Second/2 || pause > 15*time.Second || i > 15 && pause < 5*time.Second {
				t.Errorf("pause %d is %v", i, pause)
			}
		}
		for _, final := range []error{lockkeeper.ErrClosed, lockkeeper.ErrInvalid, errors.New("NOPERM")} {
			x := &scripted{Locker: l, errs: []error{lockkeeper.ErrUnavailable, final}}
			err := newElection(t, x, nil).Run(t.Context(), done)
			check.That(t, err == final, "Run: %v instead of %v", err, final)
		}
		ctx := must.Within(t, time.Millisecond) // it ends in the pause after the first error
		must.Report(t, newElection(t, &scripted{errs: []error{lockkeeper.ErrUnavailable}, Locker: l}, nil).Run(ctx, done))
	})
}

// TestEndOfContextIsNoError checks that Run returns nil if the end of its context is all that happened.
func TestEndOfContextIsNoError(t *testing.T) {
	stop, full := errors.New("signal received"), errors.New("disk full")
	for name, c := range map[string]struct {
		returned func(ctx context.Context) error // by lead
		want     error
	}{
		"nil":      {func(context.Context) error { return nil }, nil},
		"error":    {func(ctx context.Context) error { return ctx.Err() }, nil},
		"cause":    {func(ctx context.Context) error { return context.Cause(ctx) }, nil},
		"wrapped":  {func(ctx context.Context) error { return fmt.Errorf("writing: %w", ctx.Err()) }, nil},
		"resigned": {func(context.Context) error { return election.ErrResign }, nil},
		"failed":   {func(context.Context) error { return full }, full},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
				ctx, cancel := context.WithCancelCause(t.Context())
				err := newElection(t, newFair(t, s.Keeper(t, nil)), nil).Run(ctx, func(ctx context.Context, _ uint64) error {
					cancel(stop)
					<-ctx.Done()
					return c.returned(ctx)
				})
				check.That(t, err == c.want, "Run: %v, want %v", err, c.want)
			})
		})
	}
	never := func(context.Context, uint64) error { return full }
	for name, before := range map[string]func(t *testing.T, s *lockkeepertest.Server){
		"while_another_leads": func(t *testing.T, s *lockkeepertest.Server) {
			lease := must.Get(newFair(t, s.Keeper(t, nil)).Lock(t.Context()))(t)
			t.Cleanup(func() { _ = lease.Release(context.Background()) })
		},
		"in_an_outage": func(t *testing.T, s *lockkeepertest.Server) { s.Unreachable() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
				before(t, s)
				for _, wait := range []time.Duration{0, ttl, time.Minute} {
					ctx := must.Within(t, wait)
					err := newElection(t, newFair(t, s.Keeper(t, nil)), nil).Run(ctx, never)
					check.That(t, err == nil, "Run after %v: %v", wait, err)
				}
			})
		})
	}
}

// granting is a Locker whose leases are changed before they are returned.
type granting struct {
	election.Locker
	change func(*lockkeeper.Lease)
}

func (g granting) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	lease, err := g.Locker.Lock(ctx)
	g.change(lease)
	return lease, err
}

// TestLeadIsNotCalledWithoutALease checks that lead is not called if its lease or the context has ended before.
func TestLeadIsNotCalledWithoutALease(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		l := newFair(t, s.Keeper(t, nil))
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		g := granting{l, func(lease *lockkeeper.Lease) {
			switch n++; n {
			case 1:
				_ = lease.Release(t.Context())
			case 2:
				s.LoseLease(t, "boss")
				<-lease.Done()
			case 3:
				cancel()
			}
		}}
		err := newElection(t, g, nil).Run(ctx, func(context.Context, uint64) error { t.Error("lead is called"); return nil })
		check.That(t, err == nil && n == 3, "Run: %v after %d grants", err, n)
		s.RequireFree(t, "boss")
	})
}

func TestInvalidArguments(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		l := newFair(t, s.Keeper(t, nil))
		var none *fair.Lock
		kept := must.Get(mutex.New(s.Keeper(t, nil), "kept", &mutex.Options{Retain: true}))(t)
		for says, make := range map[string]func() error{
			"locker is nil":      func() error { _, err := election.New(nil, nil); return err },
			"the locker is nil":  func() error { return election.Run(t.Context(), none, nil) },
			`"kept" is retained`: func() error { _, err := election.New(kept, nil); return err },
			"lead is nil":        func() error { return election.Run(t.Context(), l, nil) },
			"MaxBackoff 1s is shor": func() error {
				_, err := election.New(l, &election.Options{MinBackoff: time.Minute, MaxBackoff: time.Second})
				return err
			},
		} {
			err := make()
			check.That(t, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), says), "%v instead of %s", err, says)
		}
		ts := newTerms()
		e := newElection(t, l, nil)
		result := run(t.Context(), e, ts.lead(t, 0, false))
		term := <-ts.starts
		if err := e.Run(t.Context(), ts.lead(t, 1, false)); !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), "boss") {
			t.Errorf("the second Run: %v", err)
		}
		term.end <- nil
		must.Report(t, <-result)
	})
}

// secretive is a Locker that does not say that it retains its leases.
type secretive struct{ election.Locker }

func (secretive) Retains() bool { return false }

// TestNoTermWithoutALeaseOfItsOwn: what a Locker that wraps another does not say, Run sees in the lease.
func TestNoTermWithoutALeaseOfItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		kept := must.Get(mutex.New(s.Keeper(t, nil), "kept", &mutex.Options{Retain: true}))(t)
		for range 3 { // the first lease is not retained
			must.OK(t, must.Get(kept.Lock(t.Context()))(t).Release(t.Context()))
			synctest.Wait() // for the subscription, without which none is retained
		}
		nothing := &scripted{Locker: secretive{kept}, errs: []error{nil}}
		for says, l := range map[string]election.Locker{
			"is retained":                  secretive{kept},
			"neither a lease nor an error": nothing,
		} {
			err := newElection(t, l, nil).Run(t.Context(), func(context.Context, uint64) error {
				t.Error("lead was called")
				return nil
			})
			check.That(t, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), says),
				"Run: %v instead of %s", err, says)
		}
		time.Sleep(time.Minute) // the process retains the lease for its TTL at most
		s.RequireFree(t, "kept")
	})
}
