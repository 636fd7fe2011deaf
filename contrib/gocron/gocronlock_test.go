package gocronlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	"github.com/lockkeeper/lockkeeper"
	gocronlock "github.com/lockkeeper/lockkeeper/contrib/gocron"
	"github.com/lockkeeper/lockkeeper/election"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
)

var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // at which bubbles start

// world is a server in virtual time, and when which scheduler has run a job.
type world struct {
	*testing.T
	s    *lockkeepertest.Server
	runs chan string
}

func bubble(t *testing.T, test func(t *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(&world{t, lockkeepertest.New(t), make(chan string, 100)}) })
}

// run is the job of a scheduler.
func (t *world) run(host string) func() {
	return func() { t.runs <- fmt.Sprint(host, time.Since(epoch).Truncate(time.Second)) }
}

func (t *world) require(want ...string) {
	t.Helper()
	synctest.Wait()
	var got []string
	for len(t.runs) > 0 {
		got = append(got, <-t.runs)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
}

func (t *world) requireError(err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// start starts a scheduler with one job, and returns a function that shuts it down.
func (t *world) start(how gocron.SchedulerOption, every time.Duration, task any, opts ...gocron.JobOption) (stop func()) {
	s := must(gocron.NewScheduler(how))
	must(s.NewJob(gocron.DurationJob(every), gocron.NewTask(task), append(opts, gocron.WithName("report"))...))
	s.Start()
	stop = sync.OnceFunc(func() { t.requireError(s.Shutdown(), nil) })
	t.Cleanup(stop)
	return stop
}

// locker returns the locker of a process of its own.
func (t *world) locker(atLeast time.Duration, onLost func(string, error)) *gocronlock.Locker {
	return must(gocronlock.NewLocker(t.s.Keeper(t, nil), atLeast, &gocronlock.Options{Logger: slog.New(slog.DiscardHandler), OnLost: onLost}))
}

// startLocked starts a scheduler with a locker.
func (t *world) startLocked(atLeast, every time.Duration, task any, opts ...gocron.JobOption) (stop func()) {
	return t.start(gocron.WithDistributedLocker(t.locker(atLeast, nil)), every, task, opts...)
}

func (t *world) elector() *gocronlock.Elector {
	m := must(mutex.New(t.s.Keeper(t, nil), "scheduler", nil))
	e := must(gocronlock.NewElector(m, &gocronlock.ElectorOptions{Logger: slog.New(slog.DiscardHandler)}))
	t.Cleanup(e.Close)
	return e
}

func TestLockerRunsJobOncePerIntervalAlthoughSchedulersDiffer(t *testing.T) {
	for _, later := range []time.Duration{0, time.Millisecond, 10 * time.Second, 30 * time.Second, 50 * time.Second} {
		t.Run(later.String(), func(t *testing.T) {
			bubble(t, func(t *world) {
				for range 2 {
					t.startLocked(54*time.Second, time.Minute, t.run(""))
					time.Sleep(later)
				}
				time.Sleep(5*time.Minute + 30*time.Second - 2*later)
				t.require("1m0s", "2m0s", "3m0s", "4m0s", "5m0s")
			})
		})
	}
}

func TestJobThatRunsForLongIsSkippedElsewhere(t *testing.T) {
	bubble(t, func(t *world) {
		skips := make(chan error, 100)
		t.startLocked(time.Second, 10*time.Minute, func() {
			t.run("a")()
			time.Sleep(5*time.Minute + 30*time.Second)
		})
		time.Sleep(9 * time.Minute)
		skipped := gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { skips <- err })
		t.startLocked(time.Second, 2*time.Minute, t.run("b"), gocron.WithEventListeners(skipped))
		time.Sleep(9 * time.Minute)
		t.require("a10m0s", "b17m0s")
		if len(skips) != 3 {
			t.Fatalf("skipped %d times", len(skips))
		}
		if err := <-skips; !errors.Is(err, lockkeeper.ErrNotAcquired) || !strings.Contains(err.Error(), "running") {
			t.Error(err)
		}
	})
}

// TestEndsTogether: what ends a job can coincide. The steps happen in this order after Lock.
func TestEndsTogether(t *testing.T) {
	for _, c := range []struct {
		steps  string
		unlock error // of Unlock
		losses int   // reported to OnLost
		next   error // of Lock of another scheduler
	}{
		{"unlock close", nil, 0, lockkeeper.ErrNotAcquired},
		{"cancel unlock close", nil, 0, lockkeeper.ErrNotAcquired},
		{"cancel long unlock close", nil, 0, nil}, // atLeast has passed since the start
		{"close unlock", lockkeeper.ErrReleased, 0, nil},
		{"cancel close unlock", lockkeeper.ErrReleased, 0, nil},
		{"lose unlock close", lockkeeper.ErrLost, 1, nil},
		{"lose noticed unlock", lockkeeper.ErrLost, 1, nil},
		{"cancel lose unlock", lockkeeper.ErrLost, 1, nil},
		{"lose noticed cancel unlock close", lockkeeper.ErrLost, 1, nil},
		{"lose noticed close unlock", lockkeeper.ErrLost, 1, nil},
		{"lose close unlock", lockkeeper.ErrReleased, 0, nil}, // which finds no loss
		{"outage cancel unlock", context.Canceled, 0, lockkeeper.ErrNotAcquired},
		{"outage noticed unlock restore", lockkeeper.ErrLost, 1, nil},
	} {
		t.Run(c.steps, func(t *testing.T) {
			bubble(t, func(t *world) {
				losses := 0
				k := t.s.Keeper(t, nil)
				onLost := func(job string, err error) {
					losses++
					t.requireError(err, lockkeeper.ErrLost)
					if job != "x" {
						t.Errorf("a loss of job %q", job)
					}
				}
				o := &gocronlock.Options{Logger: slog.New(slog.DiscardHandler), OnLost: onLost}
				ctx, cancel := context.WithCancel(t.Context())
				lock := must(must(gocronlock.NewLocker(k, time.Hour, o)).Lock(ctx, "x"))
				const answer = 50 * time.Millisecond
				t.s.SlowAnswers(answer)
				step := map[string]func(){
					"cancel": cancel,
					"long":   func() { time.Sleep(2 * time.Hour) },
					"lose":   func() { t.s.LoseLease(t, "gocron:x") },
					"noticed": func() {
						time.Sleep(time.Minute)
						if synctest.Wait(); losses != 1 {
							t.Errorf("%d losses were reported while the job runs", losses)
						}
					},
					"outage":  t.s.Unreachable,
					"restore": t.s.Restore,
					"close":   func() { _ = k.Close() },
					"unlock": func() {
						start := time.Now()
						t.requireError(lock.Unlock(ctx), c.unlock)
						if d := time.Since(start); d > time.Second || c.unlock == nil && d < answer {
							t.Errorf("Unlock took %v", d)
						}
					},
				}
				for _, name := range strings.Fields(c.steps) {
					step[name]()
				}
				t.s.Restore()
				next, err := t.locker(time.Hour, nil).Lock(t.Context(), "x")
				t.requireError(err, c.next)
				if err == nil {
					t.requireError(next.Unlock(t.Context()), nil)
				}
				if losses != c.losses {
					t.Errorf("%d losses were reported", losses)
				}
				time.Sleep(time.Minute) // until what the outage has left has expired
			})
		})
	}
}

// TestEndsWhileLeaderIsAsked: this happens while Redis has not answered yet.
func TestEndsWhileLeaderIsAsked(t *testing.T) {
	const later = 100 * time.Millisecond
	for what, c := range map[string]struct {
		do     func(k *lockkeeper.Keeper, e *gocronlock.Elector, cancel func())
		errors []error
		within time.Duration
	}{
		"nothing":      {func(*lockkeeper.Keeper, *gocronlock.Elector, func()) {}, []error{gocronlock.ErrNotLeader}, time.Second},
		"close":        {func(_ *lockkeeper.Keeper, e *gocronlock.Elector, _ func()) { e.Close() }, []error{gocronlock.ErrNotLeader}, later},
		"close keeper": {func(k *lockkeeper.Keeper, _ *gocronlock.Elector, _ func()) { _ = k.Close() }, []error{gocronlock.ErrNotLeader}, time.Second}, // after a pause
		"cancel": {func(_ *lockkeeper.Keeper, _ *gocronlock.Elector, cancel func()) { cancel() },
			[]error{gocronlock.ErrNotLeader, context.Canceled}, later},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *world) {
				t.s.Unreachable()
				k := t.s.Keeper(t, nil)
				e := must(gocronlock.NewElector(must(mutex.New(k, "scheduler", nil)), &gocronlock.ElectorOptions{Logger: slog.New(slog.DiscardHandler)}))
				defer e.Close()
				ctx, cancel := context.WithCancel(t.Context())
				start := time.Now()
				time.AfterFunc(later, func() { c.do(k, e, cancel) })
				err := e.IsLeader(ctx)
				for _, want := range c.errors {
					t.requireError(err, want)
				}
				if d := time.Since(start); d > c.within {
					t.Errorf("it took %v", d)
				}
				t.s.Restore()
			})
		})
	}
}

func TestElectorRunsJobsOnOneScheduler(t *testing.T) {
	bubble(t, func(t *world) {
		now := gocron.WithStartAt(gocron.WithStartImmediately())
		a := t.elector()
		stop := t.start(gocron.WithDistributedElector(a), time.Minute, t.run("a"), now)
		time.Sleep(time.Second)
		t.start(gocron.WithDistributedElector(t.elector()), time.Minute, t.run("b"), now)
		time.Sleep(150 * time.Second)
		stop()
		a.Close()
		time.Sleep(time.Minute)
		t.require("a0s", "a1m0s", "a2m0s", "b3m1s")
		t.requireError(a.IsLeader(t.Context()), gocronlock.ErrNotLeader)
	})
}

// requireNotLeader asks who leads, which is not this scheduler, and must be known within that time.
func (t *world) requireNotLeader(e *gocronlock.Elector, within time.Duration) {
	t.Helper()
	start := time.Now()
	t.requireError(e.IsLeader(t.Context()), gocronlock.ErrNotLeader)
	if d := time.Since(start); d > within {
		t.Errorf("it took %v", d)
	}
}

func TestElectorStepsDownWhenLeaseIsLost(t *testing.T) {
	bubble(t, func(t *world) {
		a := t.elector()
		t.requireError(a.IsLeader(t.Context()), nil)
		b := t.elector()
		t.requireNotLeader(b, 0)
		work, first := a.Lease().Context(t.Context()), a.Lease().Fence()
		t.s.FreezeHolder(t, "scheduler")
		<-work.Done()
		t.requireError(a.IsLeader(t.Context()), gocronlock.ErrNotLeader)
		time.Sleep(5 * time.Second)
		t.requireError(b.IsLeader(t.Context()), nil)
		if second := b.Lease().Fence(); second <= first {
			t.Errorf("fence %d after %d", second, first)
		}
		t.s.Restore()
	})
}

// TestSkippedJobIsLoggedUnlessItRunsElsewhere: gocron skips a job whatever the error of Lock, and only the log tells an outage from
// another scheduler.
func TestSkippedJobIsLoggedUnlessItRunsElsewhere(t *testing.T) {
	bubble(t, func(t *world) {
		var log strings.Builder
		l := must(gocronlock.NewLocker(t.s.Keeper(t, nil), time.Hour, &gocronlock.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		lock := must(t.locker(time.Hour, nil).Lock(t.Context(), "x"))
		_, err := l.Lock(t.Context(), "x")
		t.requireError(err, lockkeeper.ErrNotAcquired)
		if log.Len() > 0 {
			t.Errorf("logged of a job that runs elsewhere: %s", &log)
		}
		t.requireError(lock.Unlock(t.Context()), nil)
		t.s.Unreachable()
		_, err = l.Lock(t.Context(), "x")
		t.requireError(err, lockkeeper.ErrUnavailable)
		t.s.Restore()
		_, err = l.Lock(t.Context(), strings.Repeat("y", 2000))
		t.requireError(err, lockkeeper.ErrInvalid)
		for _, want := range []string{"msg=\"job skipped\" job=x error=", "msg=\"job skipped\" job=yyy"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("not logged: %s\n%s", want, &log)
			}
		}
	})
}

// TestLossIsLoggedWithoutOnLost: nothing else need be set to learn of a loss.
func TestLossIsLoggedWithoutOnLost(t *testing.T) {
	bubble(t, func(t *world) {
		var log strings.Builder
		l := must(gocronlock.NewLocker(t.s.Keeper(t, nil), time.Hour, &gocronlock.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		lock := must(l.Lock(t.Context(), "x"))
		t.s.LoseLease(t, "gocron:x")
		t.requireError(lock.Unlock(t.Context()), lockkeeper.ErrLost)
		if !strings.Contains(log.String(), "msg=\"lease lost") || !strings.Contains(log.String(), "job=x") {
			t.Errorf("the log:\n%s", &log)
		}
	})
}

func TestOutageSkipsJobAndDoesNotBlockElector(t *testing.T) {
	bubble(t, func(t *world) {
		t.s.Unreachable()
		_, err := t.locker(time.Hour, nil).Lock(t.Context(), "x")
		t.requireError(err, lockkeeper.ErrUnavailable)
		e := t.elector()
		t.requireNotLeader(e, time.Second)
		t.s.Restore()
		must(t.s.Client(t).HSet(t.Context(), "lock:scheduler", "of", "another").Result()) // WRONGTYPE
		refused := t.elector()
		t.requireNotLeader(refused, 0)
		refused.Close()
		must(t.s.Client(t).Del(t.Context(), "lock:scheduler").Result())
		time.Sleep(time.Minute)
		t.requireError(e.IsLeader(t.Context()), nil)
	})
}

func TestInvalidOptionsAreRefused(t *testing.T) {
	k := lockkeepertest.New(t).Keeper(t, nil)
	locker := func(atLeast, ttl time.Duration) error {
		_, err := gocronlock.NewLocker(k, atLeast, &gocronlock.Options{TTL: ttl})
		return err
	}
	elector := func(l election.Locker) error {
		_, err := gocronlock.NewElector(l, nil)
		return err
	}
	for says, err := range map[string]error{
		"period":  locker(0, 0),
		"TTL":     locker(time.Hour, time.Millisecond),
		"shorter": locker(time.Second, time.Minute),
		"Linger":  elector(must(mutex.New(k, "kept", &mutex.Options{Linger: time.Second}))),
		"nil":     elector((*mutex.Mutex)(nil)),
		"locker":  elector(nil),
	} {
		if !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}
