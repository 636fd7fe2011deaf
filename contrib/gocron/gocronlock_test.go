package gocronlock_test

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

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	"github.com/lockkeeper/lockkeeper"
	gocronlock "github.com/lockkeeper/lockkeeper/contrib/gocron"
	"github.com/lockkeeper/lockkeeper/election"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
)

// runs records which scheduler ran a job, and when.
type runs struct {
	mu   sync.Mutex
	list []string
}

func (r *runs) add(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, fmt.Sprint(host, time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Truncate(time.Second)))
}

func (r *runs) require(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if got, want := strings.Join(r.list, " "), strings.Join(want, " "); got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

var quiet = slog.New(slog.DiscardHandler)

func bubble(t *testing.T, test func(t *testing.T, s *lockkeepertest.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, lockkeepertest.New(t)) })
}

// start starts a scheduler with one job, and returns a function that shuts it down.
func start(t *testing.T, how gocron.SchedulerOption, every time.Duration, task any, opts ...gocron.JobOption) (stop func()) {
	t.Helper()
	s, err := gocron.NewScheduler(how)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewJob(gocron.DurationJob(every), gocron.NewTask(task), append(opts, gocron.WithName("report"))...); err != nil {
		t.Fatal(err)
	}
	s.Start()
	stop = sync.OnceFunc(func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func newLocker(t *testing.T, k *lockkeeper.Keeper, atLeast time.Duration, o gocronlock.Options) gocron.SchedulerOption {
	t.Helper()
	if o.Logger == nil {
		o.Logger = quiet
	}
	l, err := gocronlock.NewLocker(k, atLeast, &o)
	if err != nil {
		t.Fatal(err)
	}
	return gocron.WithDistributedLocker(l)
}

func newElector(t *testing.T, k *lockkeeper.Keeper) *gocronlock.Elector {
	t.Helper()
	m, err := mutex.New(k, "scheduler", nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := gocronlock.NewElector(m, &gocronlock.ElectorOptions{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func TestLockerRunsJobOncePerIntervalAlthoughSchedulersDiffer(t *testing.T) {
	for _, later := range []time.Duration{0, time.Millisecond, 10 * time.Second, 30 * time.Second, 50 * time.Second} {
		t.Run(later.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
				var r runs
				for range 2 {
					start(t, newLocker(t, s.Keeper(t, nil), 54*time.Second, gocronlock.Options{}), time.Minute, func() { r.add("") })
					time.Sleep(later)
				}
				time.Sleep(5*time.Minute + 30*time.Second - 2*later)
				r.require(t, "1m0s", "2m0s", "3m0s", "4m0s", "5m0s")
			})
		})
	}
}

func TestOtherSchedulerGoesOnAfterShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		var r runs
		stop := start(t, newLocker(t, s.Keeper(t, nil), 54*time.Second, gocronlock.Options{}), time.Minute, func() { r.add("a") })
		time.Sleep(30 * time.Second)
		start(t, newLocker(t, s.Keeper(t, nil), 54*time.Second, gocronlock.Options{}), time.Minute, func() { r.add("b") })
		time.Sleep(100 * time.Second)
		stop()
		time.Sleep(2*time.Minute - time.Second)
		r.require(t, "a1m0s", "a2m0s", "b3m30s")
	})
}

func TestJobThatRunsForLongIsSkippedElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		var r runs
		var skips []error
		start(t, newLocker(t, s.Keeper(t, nil), time.Second, gocronlock.Options{}), 10*time.Minute, func() {
			r.add("a")
			time.Sleep(5*time.Minute + 30*time.Second)
		})
		time.Sleep(9 * time.Minute)
		start(t, newLocker(t, s.Keeper(t, nil), time.Second, gocronlock.Options{}), 2*time.Minute, func() { r.add("b") },
			gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { skips = append(skips, err) })))
		time.Sleep(9 * time.Minute)
		r.require(t, "a10m0s", "b17m0s")
		if len(skips) != 3 {
			t.Fatalf("skipped %d times", len(skips))
		}
		if err := skips[0]; !errors.Is(err, lockkeeper.ErrNotAcquired) || !strings.Contains(err.Error(), "running") {
			t.Error(err)
		}
	})
}

func TestLockerReportsLossWhileJobRuns(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		lost := make(chan error, 1)
		o := gocronlock.Options{OnLost: func(job string, err error) { lost <- fmt.Errorf("%s: %w", job, err) }}
		start(t, newLocker(t, s.Keeper(t, nil), 54*time.Second, o), time.Minute, func() {
			if err := <-lost; !errors.Is(err, lockkeeper.ErrLost) || !strings.HasPrefix(err.Error(), "report: ") {
				t.Error(err)
			}
		})
		s.LoseLease(t, "gocron:report")
		time.Sleep(30 * time.Second) // the next renewal finds the loss
	})
}

func TestUnlockWithEndedContextRecords(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		l, err := gocronlock.NewLocker(s.Keeper(t, nil), time.Hour, &gocronlock.Options{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		lock, err := l.Lock(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(10 * time.Minute) // the job goes on: the lease is renewed
		if _, err := l.Lock(t.Context(), "x"); !errors.Is(err, lockkeeper.ErrNotAcquired) {
			t.Error("while it is held:", err)
		}
		if err := lock.Unlock(ctx); err != nil {
			t.Error(err)
		}
		time.Sleep(49 * time.Minute)
		if _, err := l.Lock(t.Context(), "x"); !errors.Is(err, lockkeeper.ErrNotAcquired) {
			t.Error("before atLeast has passed:", err)
		}
		time.Sleep(2 * time.Minute)
		lock, err = l.Lock(t.Context(), "x")
		if err != nil {
			t.Fatal("after atLeast:", err)
		}
		if err := lock.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestOutageSkipsJob(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		l, err := gocronlock.NewLocker(s.Keeper(t, nil), time.Hour, &gocronlock.Options{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		s.Unreachable()
		if _, err := l.Lock(t.Context(), "x"); !errors.Is(err, lockkeeper.ErrUnavailable) {
			t.Error(err)
		}
	})
}

func TestElectorRunsJobsOnOneScheduler(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		var r runs
		a := newElector(t, s.Keeper(t, nil))
		stop := start(t, gocron.WithDistributedElector(a), time.Minute, func() { r.add("a") }, gocron.WithStartAt(gocron.WithStartImmediately()))
		time.Sleep(time.Second)
		b := newElector(t, s.Keeper(t, nil))
		start(t, gocron.WithDistributedElector(b), time.Minute, func() { r.add("b") }, gocron.WithStartAt(gocron.WithStartImmediately()))
		time.Sleep(150 * time.Second)
		stop()
		a.Close()
		time.Sleep(time.Minute)
		r.require(t, "a0s", "a1m0s", "a2m0s", "b3m1s")
		if err := a.IsLeader(t.Context()); !errors.Is(err, gocronlock.ErrNotLeader) {
			t.Error("after Close:", err)
		}
	})
}

func TestElectorStepsDownWhenLeaseIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		a := newElector(t, s.Keeper(t, nil))
		if err := a.IsLeader(t.Context()); err != nil {
			t.Fatal(err)
		}
		b := newElector(t, s.Keeper(t, nil))
		if err := b.IsLeader(t.Context()); !errors.Is(err, gocronlock.ErrNotLeader) {
			t.Fatal(err)
		}
		work, first := a.Lease().Context(t.Context()), a.Lease().Fence()
		s.FreezeHolder(t, "scheduler")
		<-work.Done()
		if err := a.IsLeader(t.Context()); !errors.Is(err, gocronlock.ErrNotLeader) {
			t.Error(err)
		}
		time.Sleep(5 * time.Second)
		if err := b.IsLeader(t.Context()); err != nil {
			t.Error("the other one has not taken over:", err)
		}
		if second := b.Lease().Fence(); second <= first {
			t.Errorf("fence %d after %d", second, first)
		}
		s.Restore()
	})
}

func TestElectorDoesNotBlockDuringOutage(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server) {
		s.Unreachable()
		e := newElector(t, s.Keeper(t, nil))
		began := time.Now()
		if err := e.IsLeader(t.Context()); !errors.Is(err, gocronlock.ErrNotLeader) {
			t.Error(err)
		}
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("blocked for %v", waited)
		}
		s.Restore()
		time.Sleep(time.Minute)
		if err := e.IsLeader(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestInvalidOptionsAreRefused(t *testing.T) {
	k := lockkeepertest.New(t).Keeper(t, nil)
	for says, x := range map[string]struct {
		atLeast time.Duration
		ttl     time.Duration
	}{
		"period":  {0, 0},
		"TTL":     {time.Hour, time.Millisecond},
		"shorter": {time.Second, time.Minute},
	} {
		_, err := gocronlock.NewLocker(k, x.atLeast, &gocronlock.Options{TTL: x.ttl})
		if !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	kept, err := mutex.New(k, "kept", &mutex.Options{Retain: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gocronlock.NewElector(kept, nil); !errors.Is(err, lockkeeper.ErrInvalid) {
		t.Errorf("a retained mutex: %v", err)
	}
	for _, none := range []election.Locker{nil, (*mutex.Mutex)(nil)} {
		if _, err := gocronlock.NewElector(none, nil); !errors.Is(err, lockkeeper.ErrInvalid) {
			t.Error(err)
		}
	}
}
