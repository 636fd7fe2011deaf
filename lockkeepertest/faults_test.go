package lockkeepertest_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// short makes renewals and heartbeats frequent, so that tests outside of a bubble take little time. But a machine that is busy for a
// second or two ends no lease and no wait.
var (
	short = &lockkeeper.Options{HeartbeatInterval: 200 * time.Millisecond, HeartbeatTimeout: 20 * time.Second}
	ttl   = &mutex.Options{TTL: 4 * time.Second}
)

// within checks how long ago start is. It tolerates the milliseconds that waiting for a state and a hand-off take, and outside of
// a bubble the delays of a loaded machine.
func within(t *testing.T, start time.Time, least, most time.Duration) {
	t.Helper()
	most += 50 * time.Millisecond
	if strings.HasSuffix(t.Name(), "/embedded") || strings.HasSuffix(t.Name(), "/real") {
		most += 5 * time.Second
	}
	d := time.Since(start)
	check.That(t, d >= least && d <= most, "it took %v, not %v to %v", d, least, most)
}

func requireLost(t *testing.T, lease *lockkeeper.Lease) {
	t.Helper()
	select {
	case <-lease.Done():
	case <-time.After(time.Minute):
		t.Fatal("the lease was not lost")
	}
	check.Is(t, lease.Err(), lockkeeper.ErrLost, "the lease")
}

// waitFor starts a Lock and returns a channel for its lease, after the server has the waiter.
func waitFor(t *testing.T, s *lockkeepertest.Server, l interface {
	Lock(context.Context) (*lockkeeper.Lease, error)
}, name string, nth int) chan *lockkeeper.Lease {
	t.Helper()
	got := make(chan *lockkeeper.Lease, 1)
	go func() {
		lease, err := l.Lock(context.Background())
		check.That(t, err == nil || errors.Is(err, lockkeeper.ErrClosed) || errors.Is(err, lockkeeper.ErrUnavailable), "%v", err)
		got <- lease
	}()
	s.RequireWaiting(t, name, nth)
	return got
}

func TestLoseLease(t *testing.T) {
	everywhere(t, func(t *testing.T, s *lockkeepertest.Server) {
		lease := lock(t, newMutex(t, s.Keeper(t, nil), "x", ttl))
		start := time.Now()
		s.LoseLease(t, "x")
		requireLost(t, lease)
		within(t, start, 0, ttl.TTL/3)
		s.RequireFree(t, "x")
	})
}

func TestStealLock(t *testing.T) {
	everywhere(t, func(t *testing.T, s *lockkeepertest.Server) {
		// A waiter whose heartbeat finds no queue, while the thief has it out of the way, is granted the lock before the thief.
		rare := &lockkeeper.Options{HeartbeatInterval: 5 * time.Second, HeartbeatTimeout: 20 * time.Second}
		newFair := func() *fair.Lock {
			return must.Get(fair.New(s.Keeper(t, rare), "x", &fair.Options{TTL: ttl.TTL}))(t)
		}
		lease := lock(t, newFair())
		waiting := []chan *lockkeeper.Lease{waitFor(t, s, newFair(), "x", 1), waitFor(t, s, newFair(), "x", 2)}
		thief := s.StealLock(t, "x")
		check.That(t, thief.Fence() > lease.Fence(), "fence %d after %d", thief.Fence(), lease.Fence())
		requireLost(t, lease)
		s.RequireWaiting(t, "x", 2)
		release(t, thief)
		for _, ch := range waiting { // in this order
			next := <-ch
			check.That(t, next.Fence() > thief.Fence(), "fence %d after %d", next.Fence(), thief.Fence())
			release(t, next)
		}
	})
}

func TestStealLockFromReaders(t *testing.T) {
	everywhere(t, func(t *testing.T, s *lockkeepertest.Server) {
		k := s.Keeper(t, &lockkeeper.Options{Prefix: "app:"})
		f := lock(t, must.Get(fair.New(k, "x", nil))(t))
		rw := must.Get(rwlock.New(k, "x", &rwlock.Options{TTL: ttl.TTL}))(t)
		readers := []*lockkeeper.Lease{must.Get(rw.RLock(t.Context()))(t), must.Get(rw.RLock(t.Context()))(t)}
		thief := s.Kind(rwlock.Kind).StealLock(t, "x")
		s.Kind(rwlock.Kind).RequireHeld(t, "x")
		for _, reader := range readers {
			check.That(t, thief.Fence() > reader.Fence(), "fence %d after %d", thief.Fence(), reader.Fence())
			requireLost(t, reader)
		}
		release(t, thief)
		release(t, f) // of the same name
	})
}

func TestCrashHolder(t *testing.T) {
	everywhere(t, func(t *testing.T, s *lockkeepertest.Server) {
		lease := lock(t, newMutex(t, s.Keeper(t, short), "x", ttl))
		waiting := waitFor(t, s, newMutex(t, s.Keeper(t, short), "x", nil), "x", 1)
		start := time.Now()
		s.CrashHolder(t, "x")
		next := <-waiting
		within(t, start, 0, ttl.TTL)
		early := time.Until(lease.Deadline())
		check.That(t, early <= 0, "granted %v before the crashed holder's deadline", early)
		requireLost(t, lease)
		release(t, next)
	})
}

func TestCrashWaiter(t *testing.T) {
	everywhere(t, func(t *testing.T, s *lockkeepertest.Server) {
		lease := lock(t, newMutex(t, s.Keeper(t, nil), "x", nil))
		waitFor(t, s, newMutex(t, s.Keeper(t, nil), "x", nil), "x", 1)
		second := waitFor(t, s, newMutex(t, s.Keeper(t, nil), "x", nil), "x", 2)
		s.CrashWaiter(t, "x")
		time.Sleep(20 * time.Millisecond) // until the server has seen it
		start := time.Now()
		release(t, lease)
		next := <-second
		within(t, start, 0, time.Second)
		release(t, next)
	})
}

func TestFreezeHolder(t *testing.T) {
	everywhere(t, func(t *testing.T, s *lockkeepertest.Server) {
		var r lockkeepertest.Recorder
		m := newMutex(t, s.Keeper(t, &lockkeeper.Options{Hooks: r.Hooks()}), "x", ttl)
		start := time.Now()
		lease := lock(t, m)
		s.FreezeHolder(t, "x")
		time.Sleep(ttl.TTL / 3) // a renewal is due
		s.Restore()
		for frozen := time.Since(start); r.Require(t, "Renewed", "x").Duration < frozen; {
		}
		check.Is(t, lease.Err(), nil, "a short freeze")
		s.FreezeHolder(t, "x")
		requireLost(t, lease)
		s.RequireFree(t, "x")
		s.Restore()
		release(t, lock(t, m))
	})
}

// TestFreezeWaiter: the turn of a frozen waiter costs others up to its heartbeat timeout.
func TestFreezeWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const heartbeatTimeout = 6 * time.Second // the default
		s := lockkeepertest.New(t)
		lease := lock(t, newMutex(t, s.Keeper(t, nil), "x", nil))
		first := waitFor(t, s, newMutex(t, s.Keeper(t, nil), "x", nil), "x", 1)
		second := waitFor(t, s, newMutex(t, s.Keeper(t, nil), "x", nil), "x", 2)
		s.FreezeWaiter(t, "x")
		start := time.Now()
		release(t, lease)
		release(t, <-second)
		within(t, start, heartbeatTimeout/2, heartbeatTimeout)
		s.Restore()
		release(t, <-first)
	})
}

func TestUnreachable(t *testing.T) {
	everywhere(t, func(t *testing.T, s *lockkeepertest.Server) {
		k := s.Keeper(t, nil)
		lease := lock(t, newMutex(t, k, "x", ttl))
		m := newMutex(t, k, "y", nil)
		s.Unreachable()
		ctx := must.Within(t, 300*time.Millisecond)
		if _, err := m.Lock(ctx); !errors.Is(err, lockkeeper.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Lock: %v", err)
		}
		check.Is(t, check.ErrorOf(newMutex(t, s.Keeper(t, nil), "y", nil).TryLock(t.Context())), lockkeeper.ErrUnavailable,
			"TryLock by a new client")
		requireLost(t, lease)
		check.Is(t, lease.Err(), lockkeeper.ErrUnavailable, "the lease")
		s.Restore()
		release(t, lock(t, m))
	})
}

func TestLoseWakeups(t *testing.T) {
	everywhere(t, func(t *testing.T, s *lockkeepertest.Server) {
		var r lockkeepertest.Recorder
		m := newMutex(t, s.Keeper(t, nil), "x", nil)
		o := &lockkeeper.Options{HeartbeatInterval: time.Second, HeartbeatTimeout: 20 * time.Second, Hooks: r.Hooks()}
		waiter := newMutex(t, s.Keeper(t, o), "x", nil)
		for _, lost := range []bool{false, true, false} {
			if lost {
				s.LoseWakeups()
			} else {
				s.Restore()
			}
			lease := lock(t, m)
			waiting := waitFor(t, s, waiter, "x", 1)
			start := time.Now()
			release(t, lease)
			next := <-waiting
			if lost {
				within(t, start, 0, o.HeartbeatInterval)
				r.Require(t, "WakeupLost", "")
			} else {
				within(t, start, 0, o.HeartbeatInterval/2)
			}
			release(t, next)
		}
	})
}

func TestSlowAnswers(t *testing.T) {
	everywhere(t, func(t *testing.T, s *lockkeepertest.Server) {
		k := s.Keeper(t, nil)
		m := newMutex(t, k, "x", nil)
		release(t, lock(t, m)) // the connection is open
		s.SlowAnswers(200 * time.Millisecond)
		start := time.Now()
		lease := lock(t, m)
		within(t, start, 200*time.Millisecond, 200*time.Millisecond)
		s.SlowAnswers(0)
		start = time.Now()
		release(t, lease)
		within(t, start, 0, 150*time.Millisecond)
	})
}

// TestSlowAnswersToManyWaiters: processes connect, subscribe and queue meanwhile. Then several wake-ups are under way to one process
// while others send commands, and time goes on.
func TestSlowAnswersToManyWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		s.SlowAnswers(time.Second)
		holder, waiter := s.Keeper(t, nil), s.Keeper(t, nil)
		var leases []*lockkeeper.Lease
		var all sync.WaitGroup
		for i := range 8 {
			leases = append(leases, lock(t, newMutex(t, holder, strconv.Itoa(i), nil)))
			m := newMutex(t, waiter, strconv.Itoa(i), nil)
			all.Go(func() { release(t, lock(t, m)) })
		}
		s.RequireWaiting(t, "7", 1)
		s.SlowAnswers(10 * time.Millisecond)
		for _, l := range leases {
			all.Go(func() { release(t, l) })
			time.Sleep(time.Millisecond)
		}
		all.Wait()
	})
}

func TestFlush(t *testing.T) {
	everywhere(t, func(t *testing.T, s *lockkeepertest.Server) {
		lease := lock(t, newMutex(t, s.Keeper(t, short), "x", ttl))
		waiting := waitFor(t, s, newMutex(t, s.Keeper(t, short), "x", nil), "x", 1)
		s.Flush(t)
		requireLost(t, lease)
		next := <-waiting
		check.That(t, next.Fence() > lease.Fence(), "fence %d after %d", next.Fence(), lease.Fence())
		release(t, next)
	})
}

func TestFailover(t *testing.T) {
	everywhere(t, func(t *testing.T, s *lockkeepertest.Server) {
		k := s.Keeper(t, nil)
		kept := lock(t, newMutex(t, k, "kept", ttl))
		sem := must.Get(semaphore.New(k, "sem", 2, nil))(t)
		permit := must.Get(sem.AcquireN(t.Context(), 2))(t)
		released := lock(t, newMutex(t, k, "released", &mutex.Options{TTL: 2 * ttl.TTL}))
		rdb := s.Client(t)
		must.OK(t, rdb.HSet(t.Context(), "hash", "a", 1).Err())
		must.OK(t, rdb.RPush(t.Context(), "list", 1, 2).Err())
		must.OK(t, rdb.SAdd(t.Context(), "set", "a", "b").Err())
		must.OK(t, rdb.Set(t.Context(), "text", "old", 0).Err())
		var lost *lockkeeper.Lease
		s.Failover(t, func() {
			lost = lock(t, newMutex(t, k, "lost", ttl))
			release(t, released)
			must.OK(t, rdb.Set(t.Context(), "text", "new", 0).Err())
			must.OK(t, rdb.Del(t.Context(), "list", "set", "hash").Err())
		})
		s.RequireHeld(t, "released")
		requireLost(t, lost)
		text := rdb.Get(t.Context(), "text").Val()
		check.That(t, text == "old", "the text is %q", text)
		n := rdb.Exists(t.Context(), "list", "set", "hash").Val()
		check.That(t, n == 3, "%d keys are back", n)
		s.RequireFree(t, "released") // when its ttl has passed, which is twice that of the others
		check.That(t, kept.Err() == nil && permit.Err() == nil, "a lease granted before was lost: %v, %v", kept.Err(), permit.Err())
		must.OK(t, permit.Extend(t.Context(), time.Minute))
		release(t, kept)
		release(t, permit)
	})
}

// TestFailuresSayWhatServerHas: of the methods that wait.
func TestFailuresSayWhatServerHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		k := s.Keeper(t, nil)
		lease := lock(t, newMutex(t, k, "x", nil))
		read := must.Get(rwlock.New(k, "both", nil))(t)
		both := []*lockkeeper.Lease{lock(t, newMutex(t, k, "both", nil)), lock(t, read)}
		waiting := waitFor(t, s, newMutex(t, s.Keeper(t, nil), "x", nil), "x", 1)
		foreign := s.Client(t)
		must.OK(t, foreign.Set(t.Context(), "lock:foreign", "someone", time.Hour).Err())
		for what, x := range map[string]struct {
			call func(testing.TB)
			want []string
		}{
			"held":      {func(t testing.TB) { s.RequireHeld(t, "y") }, []string{`"y" is not held`, "no lock of this name"}},
			"free":      {func(t testing.TB) { s.RequireFree(t, "x") }, []string{`"x" is not free`, `mutex "lock:x": held by keeper ` + k.ID(), "1 waiting: keeper"}},
			"waiting":   {func(t testing.TB) { s.RequireWaiting(t, "x", 2) }, []string{`"x" is not waited for by 2`, "1 waiting"}},
			"ambiguous": {func(t testing.TB) { s.LoseLease(t, "both") }, []string{`several locks have the name "both"`, `mutex "lock:both"`, `rwlock "lock:both"`}},
			"kind":      {func(t testing.TB) { s.Kind("fair").RequireHeld(t, "x") }, []string{`"x" is not held`}},
			"foreign":   {func(t testing.TB) { s.CrashHolder(t, "foreign") }, []string{`another library ("someone")`, "does not use Server.Client"}},
			"url":       {func(t testing.TB) { s.URL(t) }, []string{"in a synctest bubble"}},
		} {
			got := failuresOf(t, x.call)
			if len(got) != 1 {
				t.Errorf("%s: %q", what, got)
				continue
			}
			for _, want := range x.want {
				check.That(t, strings.Contains(got[0], want), "%s: %q does not have %q", what, got[0], want)
			}
		}
		for _, l := range append(both, lease) {
			release(t, l)
		}
		release(t, <-waiting)
	})
}
