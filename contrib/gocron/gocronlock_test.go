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

func TestOtherSchedulerGoesOnAfterShutdown(t *testing.T) {
	bubble(t, func(t *world) {
		stop := t.startLocked(54*time.Second, time.Minute, t.run("a"))
		time.Sleep(30 * time.Second)
		t.startLocked(54*time.Second, time.Minute, t.run("b"))
		time.Sleep(100 * time.Second)
		stop()
		time.Sleep(2*time.Minute - time.Second)
		t.require("a1m0s", "a2m0s", "b3m30s")
	})
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

func TestLockerReportsLossWhileJobRuns(t *testing.T) {
	bubble(t, func(t *world) {
		lost := make(chan error, 1)
		l := t.locker(54*time.Second, func(job string, err error) { lost <- fmt.Errorf("%s: %w", job, err) })
		t.start(gocron.WithDistributedLocker(l), time.Minute, func() {
			if err := <-lost; !errors.Is(err, lockkeeper.ErrLost) || !strings.HasPrefix(err.Error(), "report: ") {
				t.Error(err)
			}
		})
		t.s.LoseLease(t, "gocron:report")
		time.Sleep(30 * time.Second) // the next renewal finds the loss
	})
}

func TestUnlockWithEndedContextRecords(t *testing.T) {
	bubble(t, func(t *world) {
		l := t.locker(time.Hour, nil)
		ctx, cancel := context.WithCancel(t.Context())
		lock := must(l.Lock(ctx, "x"))
		cancel()
		time.Sleep(10 * time.Minute) // the job goes on: the lease is renewed
		_, err := l.Lock(t.Context(), "x")
		t.requireError(err, lockkeeper.ErrNotAcquired)
		t.requireError(lock.Unlock(ctx), nil)
		time.Sleep(49 * time.Minute)
		_, err = l.Lock(t.Context(), "x")
		t.requireError(err, lockkeeper.ErrNotAcquired)
		time.Sleep(2 * time.Minute)
		t.requireError(must(l.Lock(t.Context(), "x")).Unlock(t.Context()), nil)
	})
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

func TestElectorStepsDownWhenLeaseIsLost(t *testing.T) {
	bubble(t, func(t *world) {
		a := t.elector()
		t.requireError(a.IsLeader(t.Context()), nil)
		b := t.elector()
		t.requireError(b.IsLeader(t.Context()), gocronlock.ErrNotLeader)
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

func TestOutageSkipsJobAndDoesNotBlockElector(t *testing.T) {
	bubble(t, func(t *world) {
		t.s.Unreachable()
		_, err := t.locker(time.Hour, nil).Lock(t.Context(), "x")
		t.requireError(err, lockkeeper.ErrUnavailable)
		e := t.elector()
		began := time.Now()
		t.requireError(e.IsLeader(t.Context()), gocronlock.ErrNotLeader)
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("blocked for %v", waited)
		}
		t.s.Restore()
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
		"Retain":  elector(must(mutex.New(k, "kept", &mutex.Options{Retain: true}))),
		"nil":     elector((*mutex.Mutex)(nil)),
		"locker":  elector(nil),
	} {
		if !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}
