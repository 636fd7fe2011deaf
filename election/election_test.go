package election_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/election"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
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
		e := newElection(t, newFair(t, s.Keeper(t, nil)), nil)
		full := errors.New("disk full")
		for _, want := range []error{nil, full, lockkeeper.ErrUnavailable} { // the last is of another lock, used by lead
			err := e.Run(t.Context(), func(context.Context, uint64) error { return want })
			check.That(t, err == want, "Run returned %v after %v", err, want)
			s.RequireFree(t, "boss")
		}
		n, resigned := 0, time.Now()
		err := e.Run(t.Context(), func(context.Context, uint64) error {
			pause := time.Since(resigned)
			switch n++; n {
			case 15: // the pauses have grown to five seconds, for as long as this term lasts
				check.That(t, pause >= 2500*time.Millisecond, "a pause of %v after many short terms", pause)
				time.Sleep(5 * time.Second)
			case 16:
				check.That(t, pause <= 150*time.Millisecond, "a pause of %v after a long term", pause)
				return nil
			}
			resigned = time.Now()
			return election.ErrResign
		})
		check.That(t, err == nil && n == 16, "Run: %v after %d terms", err, n)
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
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, final := range []error{lockkeeper.ErrClosed, lockkeeper.ErrInvalid} {
			x := &scripted{Locker: l, errs: []error{lockkeeper.ErrUnavailable, final}}
			err := newElection(t, x, nil).Run(t.Context(), done)
			check.That(t, err == final, "Run: %v instead of %v", err, final)
			x.errs = []error{final}
			err = newElection(t, x, nil).Run(ended, done)
			check.That(t, err == final, "Run, whose context has ended: %v instead of %v", err, final)
		}
		ctx := must.Within(t, time.Millisecond) // it ends in the pause after the first error
		must.Report(t, newElection(t, &scripted{errs: []error{lockkeeper.ErrUnavailable}, Locker: l}, nil).Run(ctx, done))
	})
}

// TestCampaignsAfterErrorsThatRequireIntervention checks that a candidate outlasts ten minutes of them, and says so in the log once a
// minute and when the kind of the errors changes.
func TestCampaignsAfterErrorsThatRequireIntervention(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		wrong, log := errors.New("WRONGPASS invalid username-password pair"), &quiet.Buffer{}
		x := &scripted{Locker: newFair(t, s.Keeper(t, nil)), errs: []error{lockkeeper.ErrUnavailable, wrong, lockkeeper.ErrUnavailable}}
		for range 600 {
			x.errs = append(x.errs, wrong)
		}
		var asked []error
		o := &election.Options{MinBackoff: time.Second, MaxBackoff: time.Second, Logger: slog.New(slog.NewTextHandler(log, nil)),
			Retry: func(err error) bool { asked = append(asked, err); return true }}
		must.Report(t, newElection(t, x, o).Run(t.Context(), func(context.Context, uint64) error { return nil }))
		check.That(t, len(x.calls) == 604 && len(asked) == 603, "%d calls, %d questions", len(x.calls), len(asked))
		warnings, errs := strings.Count(log.String(), "level=WARN"), strings.Count(log.String(), "level=ERROR")
		check.That(t, warnings == 2 && errs >= 10 && errs <= 12, "%d warnings and %d errors in the log", warnings, errs)

		x.errs = []error{lockkeeper.ErrUnavailable, wrong}
		o.Retry = func(err error) bool { return errors.Is(err, lockkeeper.ErrUnavailable) }
		err := newElection(t, x, o).Run(t.Context(), func(context.Context, uint64) error { return nil })
		check.That(t, err == wrong, "Run: %v", err)
	})
}

// TestOutlastsRotatedCredentials: a leader and a candidate keep their candidacies while their credentials are refused for longer than the
// lease lasts.
func TestOutlastsRotatedCredentials(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client()
	must.Report(t, admin.Do(t.Context(), "ACL", "SETUSER", "boss", "on", ">old", "~*", "&*", "+@all").Err())
	var password atomic.Value
	password.Store("old")
	ts := newTerms()
	ctx, cancel := context.WithCancel(t.Context())
	var results []<-chan error
	var failed [2]chan error
	for i := range 2 {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr, CredentialsProvider: func() (string, string) {
			return "boss", password.Load().(string)
		}})
		k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{Logger: slog.New(slog.DiscardHandler)}))(t)
		t.Cleanup(func() { _, _ = k.Close(), rdb.Close() })
		l := must.Get(fair.New(k, "boss", &fair.Options{TTL: 300 * time.Millisecond}))(t)
		failed[i] = make(chan error, 100)
		o := &election.Options{MaxBackoff: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
			Retry: func(err error) bool { failed[i] <- err; return true }}
		results = append(results, run(ctx, newElection(t, l, o), ts.lead(t, i, false)))
	}
	term := <-ts.starts
	must.Report(t, admin.Do(ctx, "ACL", "SETUSER", "boss", "resetpass", ">new").Err())
	must.Report(t, admin.Do(ctx, "CLIENT", "KILL", "USER", "boss").Err())
	<-term.ctx.Done()
	for i := range 2 {
		err := <-failed[i]
		check.That(t, strings.Contains(err.Error(), "WRONGPASS"), "the candidate's error: %v", err)
	}
	password.Store("new")
	<-ts.starts
	cancel()
	for _, r := range results {
		must.Report(t, <-r)
	}
}

// TestEndsTogether: what ends a term can coincide. The steps happen in this order, and then lead returns. A lease that is lost is not
// found to be so before it is released, unless lead notices it.
func TestEndsTogether(t *testing.T) {
	full := errors.New("disk full")
	returns := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	wrapped := func(ctx context.Context) error { return fmt.Errorf("writing: %w", ctx.Err()) }
	for _, c := range []struct {
		steps  string
		lead   func(ctx context.Context) error
		again  bool    // Run campaigns again
		errors []error // all that its error matches; none: it is nil
	}{
		{"lose", returns(nil), true, nil},
		{"lose", returns(full), true, nil},
		{"lose", returns(election.ErrResign), true, nil},
		{"lose notice", context.Cause, true, nil},
		{"lose cancel", returns(nil), false, []error{lockkeeper.ErrLost}},
		{"lose notice cancel", context.Cause, false, []error{lockkeeper.ErrLost}},
		{"cancel lose", returns(nil), false, []error{lockkeeper.ErrLost}},
		{"cancel lose", returns(full), false, []error{full, lockkeeper.ErrLost}},
		{"cancel lose", returns(election.ErrResign), false, []error{lockkeeper.ErrLost}},
		{"cancel", returns(nil), false, nil},
		{"cancel", returns(full), false, []error{full}},
		{"cancel", returns(election.ErrResign), false, nil},
		{"cancel", wrapped, false, nil},
		{"cancel", context.Cause, false, nil},
		{"close", returns(nil), false, []error{lockkeeper.ErrClosed}},
		{"close", context.Cause, false, []error{lockkeeper.ErrClosed}},
		{"lose close", returns(full), false, []error{lockkeeper.ErrClosed}},
		{"close cancel", returns(nil), false, nil},
		{"close cancel", returns(full), false, []error{full}},
		{"cancel close", context.Cause, false, nil},
		{"outage", returns(full), false, []error{full, lockkeeper.ErrUnavailable}},
		{"outage", returns(election.ErrResign), true, nil},
		{"outage cancel", returns(nil), false, []error{lockkeeper.ErrUnavailable}},
	} {
		t.Run(c.steps, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
				ctx, cancel := context.WithCancelCause(t.Context())
				k, terms, log := s.Keeper(t, nil), 0, &quiet.Buffer{}
				step := map[string]func(*lockkeeper.Lease){
					"lose":   func(*lockkeeper.Lease) { s.LoseLease(t, "boss") },
					"notice": func(lease *lockkeeper.Lease) { <-lease.Done() },
					"cancel": func(*lockkeeper.Lease) { cancel(errors.New("signal received")) },
					"close":  func(*lockkeeper.Lease) { _ = k.Close() },
					"outage": func(*lockkeeper.Lease) { s.Unreachable() },
				}
				o := &election.Options{Logger: slog.New(slog.NewTextHandler(log, nil))}
				err := newElection(t, newFair(t, k), o).Run(ctx, func(ctx context.Context, _ uint64) error {
					if terms++; terms > 1 {
						return nil
					}
					for _, name := range strings.Fields(c.steps) {
						step[name](lockkeeper.LeaseFromContext(ctx))
					}
					time.AfterFunc(2*ttl, s.Restore)
					return c.lead(ctx)
				})
				check.That(t, (terms == 2) == c.again && (err == nil) == (len(c.errors) == 0), "Run: %v after %d terms", err, terms)
				for _, want := range c.errors {
					check.Is(t, err, want, "the error")
				}
				lost := c.again && strings.HasPrefix(c.steps, "lose") || errors.Is(err, lockkeeper.ErrClosed)
				check.That(t, strings.Contains(log.String(), "leadership lost") == lost, "the log: %s", log)
			})
		})
	}
}

// TestEndOfContextIsNoError checks that Run returns nil if its context ends before a term has begun.
func TestEndOfContextIsNoError(t *testing.T) {
	never := func(context.Context, uint64) error { return errors.New("lead was called") }
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
					goOn := func(error) bool { must.Report(t, ctx.Err()); return true } // is not asked in the end
					o := &election.Options{Logger: slog.New(slog.DiscardHandler), Retry: goOn}
					err := newElection(t, newFair(t, s.Keeper(t, nil)), o).Run(ctx, never)
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
		kept := must.Get(mutex.New(s.Keeper(t, nil), "kept", &mutex.Options{Linger: time.Second}))(t)
		for says, make := range map[string]func() error{
			"locker is nil":     func() error { _, err := election.New(nil, nil); return err },
			"the locker is nil": func() error { return election.Run(t.Context(), none, nil) },
			`"kept": invalid argument: the lock has Linger`: func() error { _, err := election.New(kept, nil); return err },
			`"boss": invalid argument: lead is nil`:         func() error { return election.Run(t.Context(), l, nil) },
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

// secretive is a Locker that does not say that its leases are shared.
type secretive struct{ election.Locker }

func (secretive) Shares() bool { return false }

// TestNoTermWithoutALeaseOfItsOwn: what a Locker that wraps another does not say, Run sees in the lease.
func TestNoTermWithoutALeaseOfItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		kept := must.Get(mutex.New(s.Keeper(t, nil), "kept", &mutex.Options{Linger: time.Second}))(t)
		nothing := &scripted{Locker: secretive{kept}, errs: []error{nil}}
		for says, l := range map[string]election.Locker{
			"has Linger":                   secretive{kept},
			"neither a lease nor an error": nothing,
		} {
			err := newElection(t, l, nil).Run(t.Context(), func(context.Context, uint64) error {
				t.Error("lead was called")
				return nil
			})
			check.That(t, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), says),
				"Run: %v instead of %s", err, says)
		}
		time.Sleep(time.Minute) // the lease lingers for a second
		s.RequireFree(t, "kept")
	})
}
