package joblimit_test

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
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/joblimit"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

func bubble(t *testing.T, test func(t *testing.T, s *lockkeepertest.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, lockkeepertest.New(t)) })
}

func nothing(context.Context) error { return nil }

// requirePostponed checks that a job of key is refused for a time between from and to, and returns the error.
func requirePostponed(t *testing.T, l *joblimit.Limiter, key string, from, to time.Duration) *joblimit.PostponedError {
	t.Helper()
	err := l.Do(t.Context(), key, func(context.Context) error {
		t.Error("the job was run")
		return nil
	})
	var p *joblimit.PostponedError
	must.That(t, errors.As(err, &p) && p.RetryAfter >= from && p.RetryAfter <= to, "%v; want a postponement by %v to %v", err, from, to)
	check.That(t, strings.HasPrefix(err.Error(), "lockkeeper: job postponed by "), "%v", err)
	return p
}

// hold runs n jobs of a key until the function that it returns is called.
func hold(t *testing.T, l *joblimit.Limiter, key string, n int) (end func()) {
	t.Helper()
	ended, started := make(chan struct{}), make(chan struct{})
	var jobs sync.WaitGroup
	for range n {
		jobs.Go(func() {
			err := l.Do(t.Context(), key, func(context.Context) error {
				started <- struct{}{}
				<-ended
				return nil
			})
			must.Report(t, err)
		})
		<-started
	}
	return func() {
		close(ended)
		jobs.Wait()
	}
}

func TestLimitCountsJobsOfOneKey(t *testing.T) {
	for name, x := range map[string]struct {
		n    int
		open func(k *lockkeeper.Keeper) (*joblimit.Limiter, error)
	}{
		"exclusive":  {1, func(k *lockkeeper.Keeper) (*joblimit.Limiter, error) { return joblimit.Exclusive(k, nil) }},
		"concurrent": {3, func(k *lockkeeper.Keeper) (*joblimit.Limiter, error) { return joblimit.Concurrent(k, 3, nil) }},
		"concurrent rate": {2, func(k *lockkeeper.Keeper) (*joblimit.Limiter, error) {
			return joblimit.ConcurrentRate(k, 100, time.Hour, 2, nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
				here, there := must.Get(x.open(s.Keeper(t, nil)))(t), must.Get(x.open(s.Keeper(t, nil)))(t)
				end := hold(t, here, "a", x.n)
				p := requirePostponed(t, there, "a", time.Second, 1500*time.Millisecond)
				check.Is(t, p, lockkeeper.ErrNotAcquired, "the error")
				must.OK(t, there.Do(t.Context(), "b", nothing))
				end()
				must.OK(t, there.Do(t.Context(), "a", nothing))
			})
		})
	}
}

// TestAhead: a process takes permits of a key for its next jobs, and lets those in without a round trip.
func TestAhead(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		inside := 0
		k := s.Keeper(t, &lockkeeper.Options{Hooks: lockkeeper.Hooks{AcquireDone: func(e lockkeeper.Event) {
			if e.Local {
				inside++
			}
		}}})
		l := must.Get(joblimit.Rate(k, 1000, time.Second, &joblimit.Options{Ahead: true}))(t)
		for range 100 {
			must.OK(t, l.Do(t.Context(), "a", nothing))
		}
		check.That(t, inside >= 50, "%d of 100 jobs were let in without a round trip", inside)
		time.Sleep(2 * time.Second) // until all permits have returned
	})
}

func TestRateSaysWhenPermitReturns(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		l := must.Get(joblimit.Rate(s.Keeper(t, nil), 2, time.Minute, nil))(t)
		for range 2 {
			must.OK(t, l.Do(t.Context(), "a", nothing))
			time.Sleep(10 * time.Second)
		}
		p := requirePostponed(t, l, "a", 39*time.Second, 41500*time.Millisecond)
		time.Sleep(p.RetryAfter)
		must.OK(t, l.Do(t.Context(), "a", nothing))
		requirePostponed(t, l, "a", time.Second, 12*time.Second)
		soon := must.Get(joblimit.Rate(s.Keeper(t, nil), 1, 100*time.Millisecond, nil))(t)
		must.OK(t, soon.Do(t.Context(), "b", nothing))
		requirePostponed(t, soon, "b", time.Second, 1500*time.Millisecond) // by RetryAfter at least
		time.Sleep(time.Minute)                                            // until all permits have returned
	})
}

func TestMaxWaitWaitsForTurn(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		o := &joblimit.Options{MaxWait: time.Minute, RetryAfter: 5 * time.Second}
		exclusive := must.Get(joblimit.Exclusive(s.Keeper(t, nil), o))(t)
		end := hold(t, exclusive, "a", 1)
		began := time.Now()
		requirePostponed(t, exclusive, "a", 5*time.Second, 7500*time.Millisecond)
		if waited := time.Since(began); waited != time.Minute {
			t.Errorf("waited for %v", waited)
		}
		time.AfterFunc(30*time.Second, end)
		must.OK(t, exclusive.Do(t.Context(), "a", nothing))
		time.AfterFunc(time.Hour, hold(t, exclusive, "a", 1))
		must.OK(t, exclusive.DoWait(t.Context(), "a", nothing)) // as long as it takes

		rate := must.Get(joblimit.Rate(s.Keeper(t, nil), 1, time.Hour, o))(t)
		must.OK(t, rate.Do(t.Context(), "a", nothing))
		began = time.Now()
		requirePostponed(t, rate, "a", 59*time.Minute, 61*time.Minute)
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("waited for %v, although no permit returns within MaxWait", waited)
		}
		time.Sleep(time.Hour)
	})
}

// TestEndsTogether: what ends a job can coincide. The steps happen in this order, and then the job returns.
func TestEndsTogether(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		steps    string
		returned error
		errors   []error // all that the error matches; none: it is nil
		lost     bool    // the loss is logged
	}{
		{"", nil, nil, false},
		{"", failed, []error{failed}, false},
		{"lose", nil, nil, true},
		{"lose", failed, []error{failed, lockkeeper.ErrLost}, true},
		{"lose ended", nil, nil, true},
		{"lose ended", lockkeeper.ErrLost, []error{lockkeeper.ErrLost}, true}, // its cause
		{"lose ended cancel", failed, []error{failed, lockkeeper.ErrLost}, true},
		{"cancel", nil, nil, false},
		{"cancel", context.Canceled, []error{context.Canceled}, false},
		{"cancel lose", nil, nil, true},
		{"cancel lose", failed, []error{failed, lockkeeper.ErrLost}, true},
		{"close", nil, nil, false},
		{"close", failed, []error{failed}, false},
		{"cancel close", failed, []error{failed}, false},
		{"outage cancel", nil, nil, false},
		{"outage", failed, []error{failed}, false},
		{"outage ended", failed, []error{failed, lockkeeper.ErrLost}, true},
		{"panic", nil, nil, false},
		{"cancel panic", nil, nil, false},
	} {
		t.Run(fmt.Sprint(c.steps, ", ", c.returned), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
				var log strings.Builder
				k := s.Keeper(t, nil)
				l := must.Get(joblimit.Exclusive(k, &joblimit.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))(t)
				ctx, cancel := context.WithCancel(t.Context())
				step := map[string]func(context.Context){
					"lose":   func(context.Context) { s.LoseLease(t, "job:a") },
					"ended":  func(ctx context.Context) { <-ctx.Done() },
					"cancel": func(context.Context) { cancel() },
					"close":  func(context.Context) { _ = k.Close() },
					"outage": func(context.Context) { s.Unreachable() },
					"panic":  func(context.Context) { panic("bad job") },
				}
				err := func() error {
					defer func() { _ = recover() }()
					return l.Do(ctx, "a", func(ctx context.Context) error {
						check.That(t, lockkeeper.LeaseFromContext(ctx).Fence() != 0, "the context has no lease")
						for _, name := range strings.Fields(c.steps) {
							step[name](ctx)
						}
						return c.returned
					})
				}()
				check.That(t, (err == nil) == (len(c.errors) == 0) && !errors.As(err, new(*joblimit.PostponedError)), "Do: %v", err)
				for _, want := range c.errors {
					check.Is(t, err, want, "the error")
				}
				check.That(t, errors.Is(err, lockkeeper.ErrLost) == (c.lost && err != nil), "Do: %v", err)
				check.That(t, strings.Contains(log.String(), "lease lost") == c.lost, "the log: %q", log.String())
				s.Restore()
				s.RequireFree(t, "job:a")
			})
		})
	}
}

// TestEndsWhileRefused: another job has the limit, and this happens as the job is refused or MaxWait passes: it is postponed all the same.
func TestEndsWhileRefused(t *testing.T) {
	for _, maxWait := range []time.Duration{0, time.Second} {
		for _, name := range []string{"nothing", "cancel", "close"} {
			t.Run(fmt.Sprint(name, ", ", maxWait), func(t *testing.T) {
				bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
					end := hold(t, must.Get(joblimit.Exclusive(s.Keeper(t, nil), nil))(t), "a", 1)
					k := s.Keeper(t, nil)
					l := must.Get(joblimit.Exclusive(k, &joblimit.Options{MaxWait: maxWait}))(t)
					ctx, cancel := context.WithCancel(t.Context())
					time.AfterFunc(maxWait, map[string]func(){"nothing": func() {}, "cancel": cancel, "close": func() { _ = k.Close() }}[name])
					err := l.Do(ctx, "a", func(context.Context) error { t.Error("the job was run"); return nil })
					check.That(t, errors.As(err, new(*joblimit.PostponedError)), "Do: %v", err)
					end()
					s.RequireFree(t, "job:a")
				})
			})
		}
	}
}

func TestWhatPassesPostpones(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		k := s.Keeper(t, nil)
		l := must.Get(joblimit.Exclusive(k, nil))(t)
		s.Unreachable()
		check.Is(t, requirePostponed(t, l, "a", time.Second, 1500*time.Millisecond), lockkeeper.ErrUnavailable, "the error")
		s.Restore()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		err := l.Do(ended, "a", nothing)
		if p := (*joblimit.PostponedError)(nil); !errors.As(err, &p) || !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		must.OK(t, k.Close())
		check.Is(t, requirePostponed(t, l, "a", time.Second, 1500*time.Millisecond), lockkeeper.ErrClosed, "the error")
	})
}

// TestPostponesWhatRequiresIntervention: a job does not count as failed while Redis refuses, and the log says why once a minute.
func TestPostponesWhatRequiresIntervention(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		var log strings.Builder
		l := must.Get(joblimit.Exclusive(s.Keeper(t, nil), &joblimit.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))(t)
		must.OK(t, s.Client(t).HSet(t.Context(), "lock:job:a", "of", "another").Err())
		for range 90 {
			p := requirePostponed(t, l, "a", time.Second, 1500*time.Millisecond)
			check.That(t, strings.Contains(p.Error(), "WRONGTYPE"), "the error: %v", p)
			time.Sleep(time.Second)
		}
		check.That(t, strings.Count(log.String(), "level=ERROR") == 2 && strings.Contains(log.String(), "WRONGTYPE"), "the log:\n%s", log.String())
		must.OK(t, s.Client(t).Del(t.Context(), "lock:job:a").Err())
		must.OK(t, l.Do(t.Context(), "a", nothing))
	})
}

func TestInvalidOptionsAndKeys(t *testing.T) {
	k := lockkeepertest.New(t).Keeper(t, nil)
	rate := func(n int, window time.Duration, o *joblimit.Options) error {
		_, err := joblimit.Rate(k, n, window, o)
		return err
	}
	exclusive := func(o joblimit.Options) error {
		_, err := joblimit.Exclusive(k, &o)
		return err
	}
	_, concurrent := joblimit.Concurrent(k, 0, nil)
	_, both := joblimit.ConcurrentRate(k, 1, time.Second, 0, nil)
	_, bothAhead := joblimit.ConcurrentRate(k, 1, time.Second, 1, &joblimit.Options{Ahead: true})
	empty := must.Get(joblimit.Exclusive(k, nil))(t).Do(t.Context(), "", nothing)
	long := must.Get(joblimit.Exclusive(k, nil))(t).Do(t.Context(), strings.Repeat("x", 2000), nothing)
	for says, err := range map[string]error{
		"MaxWait":                              exclusive(joblimit.Options{MaxWait: -1}),
		"RetryAfter":                           exclusive(joblimit.Options{RetryAfter: -1}),
		"RetryAfter 24h0m0.000000001s":         exclusive(joblimit.Options{RetryAfter: 24*time.Hour + 1}),
		"TTL 1ms":                              exclusive(joblimit.Options{TTL: time.Millisecond}),
		"limit":                                rate(0, time.Second, nil),
		"window":                               rate(1, time.Millisecond, nil),
		"TTL 1s":                               rate(1, time.Second, &joblimit.Options{TTL: time.Second}),
		"Ahead":                                exclusive(joblimit.Options{Ahead: true}),
		"for Rate only":                        bothAhead,
		"maxConcurrent 0":                      both,
		"limit 0":                              concurrent,
		"1024":                                 long,
		"key is empty":                         empty,
		`"job:a": invalid argument: fn is nil`: must.Get(joblimit.Exclusive(k, nil))(t).Do(t.Context(), "a", nil),
	} {
		check.That(t, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), says), "%s: %v", says, err)
	}
	must.OK(t, exclusive(joblimit.Options{RetryAfter: 24 * time.Hour})) // the longest
}
