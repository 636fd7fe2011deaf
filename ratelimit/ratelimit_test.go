package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/conformance"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/redis/go-redis/v9"
)

//go:noinline
func TestMain(m *testing.M) { conformance.Main(m, primitive) }

// primitive is a limiter of which one permit is held at a time, so it must be as good a lock as the others. What it does besides
// is in conformance.RateLimits.
var primitive = conformance.Primitive{
	Kind: "ratelimit",
	Key:  func(name string) string { return "{lock:" + name + "}:ratelimit:holders" },
	New: func(k *lockkeeper.Keeper, name string, o conformance.Options) (conformance.Locker, error) {
		l, err := ratelimit.NewConcurrent(k, name, math.MaxInt32/4, window, 1, &ratelimit.ConcurrentOptions{
			TTL: o.TTL, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime,
		})
		if err != nil {
			return nil, err
		}
		return withLeases{l.Locker(), l}, nil
	},
	Fair:   true,
	Window: window,
	Cases:  conformance.RateLimits,
}

// leaseless is a limiter without leases that grants one permit in each window.
var leaseless = conformance.Primitive{
	Kind: "ratelimit",
	Key:  primitive.Key,
	New: func(k *lockkeeper.Keeper, name string, o conformance.Options) (conformance.Locker, error) {
		l, err := ratelimit.New(k, name, 1, o.TTL, nil)
		return withoutLeases{l}, err
	},
	Fair:   true,
	Window: window,
	Only:   conformance.Leaseless,
	Slow:   []string{"08_wait_cancelled_during_grant_cleans_up", "30_waiters_served_in_order"}, // they take many windows
}

const window = time.Second

// withLeases is a ConcurrentLimiter as a lock.
type withLeases struct {
	lockkeeper.Locker
	*ratelimit.ConcurrentLimiter
}

func (l withLeases) Name() string { return l.Locker.Name() }
func (l withLeases) Key() string  { return l.Locker.Key() }

// withoutLeases is a limiter as a lock whose lease is nil, which behaves like one that was released.
type withoutLeases struct{ *ratelimit.Limiter }

func (l withoutLeases) Lock(ctx context.Context) (*lockkeeper.Lease, error) { return nil, l.Wait(ctx) }

func (withoutLeases) Adopt(context.Context, string) (*lockkeeper.Lease, error) {
	return nil, errors.New("there are no leases")
}

func (l withoutLeases) TryLock(ctx context.Context) (*lockkeeper.Lease, error) {
	r, err := l.Allow(ctx)
	if err == nil && !r.Allowed {
		err = fmt.Errorf("lockkeeper: ratelimit %q: %w", l.Name(), lockkeeper.ErrNotAcquired)
	}
	return nil, err
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.All(t, primitive)
}

func TestConformanceWithoutLeases(t *testing.T) {
	t.Parallel()
	conformance.Run(t, leaseless)
}

// TestInvalidOptionsRejected: each error names what is wrong. Options that all locks have are tested in internal/testing/conformance.
func TestInvalidOptionsRejected(t *testing.T) {
	const year = 365 * 24 * time.Hour
	s := lockkeepertest.New(t)
	k := s.Keeper(t, nil)
	slow := s.Keeper(t, &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: 8 * time.Second}})
	ahead := ratelimit.Options{Ahead: true}
	for _, x := range []struct {
		keeper *lockkeeper.Keeper
		limit  int
		window time.Duration
		opts   ratelimit.Options
		names  string // what the error names, or nothing if there is to be none
	}{
		{k, 1_000_000_000, time.Second, ratelimit.Options{}, ""},
		{k, 0, time.Second, ratelimit.Options{}, "limit 0"},
		{k, -1, time.Second, ratelimit.Options{}, "limit -1"},
		{k, 1_000_000_001, time.Second, ratelimit.Options{}, "limit 1000000001"},
		{k, 1, 0, ratelimit.Options{}, "window 0s"},
		{k, 1, -time.Second, ratelimit.Options{}, "window -1s"},
		{k, 1, ratelimit.MinWindow - 1, ratelimit.Options{}, "window 9.999999ms"},
		{k, 1, ratelimit.MinWindow, ratelimit.Options{}, ""},
		{k, 1, year, ahead, ""},
		{k, 1, year + 24*time.Hour, ratelimit.Options{}, "window 8784h"},
		{k, 1, ratelimit.MinAheadWindow - 1, ahead, ""},
		{k, 1, ratelimit.MinAheadWindow - time.Millisecond, ahead, "window 199ms is shorter than 200ms"},
		{slow, 1, 8 * time.Second, ratelimit.Options{}, "window 8s is not longer than the keeper's ReplicaAck.Timeout 8s"},
		{slow, 1, 9 * time.Second, ratelimit.Options{}, ""},
		{nil, 1, time.Second, ahead, "keeper is nil"},
	} {
		before := x.opts
		l, err := ratelimit.New(x.keeper, "x", x.limit, x.window, &x.opts)
		if x.names == "" && (l == nil || err != nil) || x.names != "" && l != nil || x.opts != before {
			t.Errorf("%+v: %v, %v", x, l, err)
		}
		requireNames(t, err, x.names)
	}
}

// requireNames checks that an error is ErrInvalid and names something, unless that is empty.
func requireNames(t *testing.T, err error, names string) {
	t.Helper()
	if names != "" && (!errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), names)) {
		t.Errorf("%v, want an ErrInvalid that names %q", err, names)
	}
}

func TestInvalidConcurrentOptionsRejected(t *testing.T) {
	s := lockkeepertest.New(t)
	k := s.Keeper(t, nil)
	slow := s.Keeper(t, &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: 8 * time.Second}})
	for _, c := range []int{1, 1_000_000_000} { // the window may be shorter than the timeout, since there are leases
		must.Get(ratelimit.NewConcurrent(slow, "x", 1, time.Second, c, nil))(t)
	}
	for _, x := range []struct {
		keeper        *lockkeeper.Keeper
		limit         int
		window        time.Duration
		maxConcurrent int
		ttl           time.Duration
		names         string
	}{
		{k, 0, time.Second, 1, 0, "limit 0"},
		{k, 1, time.Millisecond, 1, 0, "window 1ms"},
		{k, 1, time.Second, 0, 0, "maxConcurrent 0"},
		{k, 1, time.Second, -1, 0, "maxConcurrent -1"},
		{k, 1, time.Second, 1_000_000_001, 0, "maxConcurrent 1000000001"},
		{k, 1, time.Second, 1, time.Millisecond, "TTL 1ms"},
		{slow, 1, time.Second, 1, 8 * time.Second, "TTL 8s is not longer"},
	} {
		_, err := ratelimit.NewConcurrent(x.keeper, "x", x.limit, x.window, x.maxConcurrent, &ratelimit.ConcurrentOptions{TTL: x.ttl})
		requireNames(t, err, x.names)
	}
}

// TestLeaseKeepsItsFenceBesideCallersWithoutLeases changes the limits to those of a Limiter while a lease is held, whose permit
// returns by the clock meanwhile.
func TestLeaseKeepsItsFenceBesideCallersWithoutLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkeepertest.New(t).Keeper(t, nil)
		with := must.Get(ratelimit.NewConcurrent(k, "api", 2, time.Second, 2, nil))(t)
		without := must.Get(ratelimit.New(k, "api", 6, time.Second, nil))(t)
		lease := must.Get(with.TryAcquire(t.Context()))(t)
		for range 3 {
			if r, err := without.Allow(t.Context()); err != nil || !r.Allowed {
				t.Fatal(r, err)
			}
			time.Sleep(1100 * time.Millisecond)
		}
		another := must.Get(with.TryAcquire(t.Context()))(t) // Holders lists leases again
		fences := map[string]uint64{}
		for _, h := range must.Get(with.Holders(t.Context()))(t) {
			fences[h.Token] = h.Fence
		}
		check.That(t, fences[lease.Token()] == lease.Fence(), "the lease's fence is %d, was %d", fences[lease.Token()], lease.Fence())
		must.OK(t, another.Release(t.Context()))
		must.OK(t, lease.Release(t.Context()))
	})
}

// TestAnswerAsTheCallerLeaves lets answers come when the context of the call ends, before, and after that: nothing is written any more to
// what the caller has been given, which the race detector would find.
func TestAnswerAsTheCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		l := must.Get(ratelimit.New(s.Keeper(t, nil), "api", 1000, time.Minute, nil))(t)
		must.Get(l.Allow(t.Context()))(t) // the server knows the scripts from now on
		s.SlowAnswers(time.Millisecond)
		answered := 0
		for i := range 60 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
			r, err := l.Allow(ctx)
			switch {
			case err == nil && r.Allowed && r.Limit == 1000:
				answered++
			case err == nil || !errors.Is(err, context.DeadlineExceeded) || r != (ratelimit.Result{}):
				t.Errorf("%d: %+v, %v", i, r, err)
			}
			time.Sleep(10 * time.Millisecond)
			cancel()
		}
		check.That(t, answered != 0 && answered != 60, "%d of 60 calls were answered in time", answered)
	})
}

// TestReplicaAckOfLostPermit checks that a call returns although the server has lost its permit before replicas could have it.
func TestReplicaAckOfLostPermit(t *testing.T) {
	embedded.Run(t, func(s *embedded.Server) {
		rdb := redis.NewClient(faultnet.Options(s.Network(), time.Second))
		defer func() { must.OK(s, rdb.Close()) }()
		must.OK(s, rdb.Ping(context.Background()).Err()) // the server exists from now on
		var loses atomic.Bool
		s.Mini.Server().SetPreHook(func(c *server.Peer, command string, args ...string) bool {
			if command == "EVALSHA" && args[0] == lua.RateLimit.Acquire.SHA && loses.Load() { // it repeats the request, for the replicas
				s.Mini.FlushAll()
			}
			if command == "WAIT" {
				c.WriteInt(1)
			}
			return command == "WAIT"
		})
		k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1}}))(s)
		l := must.Get(ratelimit.New(k, "x", 10, time.Minute, nil))(s)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for range 2 { // the first loads the scripts
			must.Get(l.Allow(ctx))(s)
		}
		loses.Store(true)
		_, err := l.Allow(ctx)
		check.That(s, errors.Is(err, lockkeeper.ErrLost) && ctx.Err() == nil, "error %v, want ErrLost", err)
		must.OK(s, k.Close())
	})
}

// TestLostReplyOfLastPermit checks that a call that has taken the last permit is allowed, though the window is full when it is repeated.
func TestLostReplyOfLastPermit(t *testing.T) {
	embedded.Run(t, func(s *embedded.Server) {
		network := s.Network()
		rdb := redis.NewClient(faultnet.Options(network, time.Second))
		defer func() { must.OK(s, rdb.Close()) }()
		k := must.Get(lockkeeper.New(rdb, nil))(s)
		l := must.Get(ratelimit.New(k, "x", 40, time.Minute, nil))(s)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for range 39 { // meanwhile the fast script begins to decide
			must.Get(l.Allow(ctx))(s)
			time.Sleep(time.Millisecond) // it draws no fence twice from the same time
		}
		network.Break("evalsha", 1, faultnet.CutReply)
		last, next := must.Get(l.Allow(ctx))(s), must.Get(l.Allow(ctx))(s)
		check.That(s, last.Allowed && last.Remaining == 0 && !next.Allowed, "the last %+v, then %+v", last, next)
		must.OK(s, k.Close())
	})
}

// pair returns a limiter of one name in each of two processes: ten permits a second.
func pair(t *testing.T) (s *lockkeepertest.Server, a, b *ratelimit.Limiter) {
	t.Helper()
	s = lockkeepertest.New(t)
	open := func() *ratelimit.Limiter {
		return must.Get(ratelimit.New(s.Keeper(t, nil), "api", 10, time.Second, nil))(t)
	}
	return s, open(), open()
}

func requireAvailable(t *testing.T, l interface {
	Available(ctx context.Context) (int, error)
}, want int) {
	t.Helper()
	n, err := l.Available(t.Context())
	must.That(t, n == want && err == nil, "%d permits are available, %v; want %d", n, err, want)
}

// TestSetLimitBack: what was taken under another limit counts under the caller's own again, also for a process that knows only that one.
func TestSetLimitBack(t *testing.T) {
	for limit, takes := range map[int]int{20: 15, 21: 21, 5: 5} {
		synctest.Test(t, func(t *testing.T) {
			_, a, b := pair(t)
			must.OK(t, a.SetLimit(t.Context(), limit))
			for range takes {
				must.OK(t, a.Wait(t.Context()))
				time.Sleep(time.Millisecond)
			}
			must.OK(t, a.SetLimit(t.Context(), 10))
			if r, err := b.Allow(t.Context()); err != nil || r.Allowed != (takes < 10) || r.Remaining != max(9-takes, 0) {
				t.Errorf("%d of 10 are taken, under a limit of %d: %+v, %v", takes, limit, r, err)
			}
		})
	}
}

// TestSetLimitOfLongWindow: the limit stays in force for a window after the last use.
func TestSetLimitOfLongWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		l := must.Get(ratelimit.New(lockkeepertest.New(t).Keeper(t, nil), "api", 5, day, nil))(t)
		must.OK(t, l.SetLimit(t.Context(), 2))
		time.Sleep(day / 5)
		must.OK(t, l.WaitN(t.Context(), 2))
		time.Sleep(day - time.Second)
		r, err := l.Allow(t.Context())
		check.That(t, err == nil && !r.Allowed && r.Limit == 2, "within a window of two permits under a limit of two: %+v, %v", r, err)
	})
}

// TestCallCountsForAWindow: however short the lease was under which the permit was taken.
func TestCallCountsForAWindow(t *testing.T) {
	type limiter interface {
		Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error
		Available(ctx context.Context) (int, error)
	}
	for kind, open := range map[string]func(k *lockkeeper.Keeper) (limiter, error){
		"Limiter": func(k *lockkeeper.Keeper) (limiter, error) { return ratelimit.New(k, "api", 3, time.Minute, nil) },
		"ConcurrentLimiter": func(k *lockkeeper.Keeper) (limiter, error) {
			return ratelimit.NewConcurrent(k, "api", 3, time.Minute, 3, &ratelimit.ConcurrentOptions{TTL: time.Second})
		},
	} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := must.Get(open(lockkeepertest.New(t).Keeper(t, nil)))(t)
				call := func() { must.OK(t, l.Do(t.Context(), func(context.Context, uint64) error { return nil })) }
				call()
				for range 2 {
					time.Sleep(50 * time.Second) // the key of the first call expires soon, unless another one keeps it
					call()
				}
				time.Sleep(time.Minute - 2*time.Millisecond)
				requireAvailable(t, l, 2)
				time.Sleep(4 * time.Millisecond)
				requireAvailable(t, l, 3)
			})
		})
	}
}

// TestLongerWindowCountsWhatWasTakenBefore: permits that were taken under a short window return when a longer one has passed, if a caller
// has that.
func TestLongerWindowCountsWhatWasTakenBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkeepertest.New(t).Keeper(t, nil)
		must.OK(t, must.Get(ratelimit.New(k, "api", 2, time.Second, nil))(t).WaitN(t.Context(), 2))
		l := must.Get(ratelimit.New(k, "api", 2, time.Minute, nil))(t)
		requireRefused := func() {
			t.Helper()
			r, err := l.Allow(t.Context())
			check.That(t, err == nil && !r.Allowed, "%+v, %v; want a refusal", r, err)
		}
		requireRefused()
		time.Sleep(time.Minute - time.Second)
		requireRefused()
		time.Sleep(2 * time.Second)
		requireAvailable(t, l, 2)
	})
}

func requirePause(t *testing.T, l *ratelimit.Limiter, d time.Duration) {
	t.Helper()
	must.OK(t, l.Pause(t.Context(), d))
}

func TestPauseHoldsBackAllProcesses(t *testing.T) {
	// In a minute the first permit has returned.
	for pause, available := range map[time.Duration]int{time.Millisecond: 8, 300 * time.Millisecond: 8, time.Minute: 9} {
		synctest.Test(t, func(t *testing.T) {
			_, a, b := pair(t)
			must.OK(t, b.Wait(t.Context()))
			start := time.Now()
			requirePause(t, a, pause)
			r, err := b.Allow(t.Context())
			if err != nil || r.Allowed || r.Remaining != 0 || r.RetryAfter != pause || r.ResetAfter < pause {
				t.Errorf("%+v, %v; want a refusal for %v", r, err, pause)
			}
			requireAvailable(t, b, 0)
			ctx := must.Within(t, pause-time.Second)
			var limited *ratelimit.LimitedError
			if err := b.Wait(ctx); pause > time.Second && (!errors.As(err, &limited) || limited.RetryAfter != pause || time.Since(start) > 0) {
				t.Errorf("%v after %v, want a LimitedError of %v at once", err, time.Since(start), pause)
			}
			must.OK(t, b.Wait(t.Context()))
			d := time.Since(start)
			check.That(t, d >= pause && d <= pause+100*time.Millisecond, "a permit came after %v, the pause is %v", d, pause)
			requireAvailable(t, a, available)
		})
	}
}

// TestWaitersKeepOrderInPause: those that waited before the pause, and those that came in it.
func TestWaitersKeepOrderInPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		must.OK(t, a.WaitN(t.Context(), 10))
		start := time.Now()
		served := make(chan int, 3)
		for i, l := range []*ratelimit.Limiter{a, b, a} {
			if i == 1 {
				requirePause(t, b, time.Minute)
			}
			go func() {
				must.Report(t, l.WaitN(t.Context(), 10))
				d := time.Since(start)
				check.That(t, d >= time.Minute+time.Duration(i)*time.Second, "waiter %d was served after %v", i, d)
				served <- i
			}()
			synctest.Wait()
		}
		for want := range 3 {
			got := <-served
			check.That(t, got == want, "waiter %d was served, want %d", got, want)
		}
	})
}

func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		requirePause(t, a, ratelimit.MaxPause)
		requirePause(t, b, time.Second) // a longer one stays
		start := time.Now()
		done := make(chan error)
		go func() { done <- b.Wait(t.Context()) }()
		time.Sleep(time.Hour)
		select {
		case err := <-done:
			t.Fatalf("Wait returned in the pause: %v", err)
		default:
		}
		must.OK(t, a.Resume(t.Context()))
		must.OK(t, <-done)
		d := time.Since(start)
		check.That(t, d <= time.Hour+100*time.Millisecond, "the waiter was served %v after Resume", d-time.Hour)
		must.Report(t, a.Resume(t.Context())) // there is none
	})
}

func TestPauseKeepsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		a := must.Get(ratelimit.NewConcurrent(s.Keeper(t, nil), "api", 10, time.Second, 2, nil))(t)
		b := must.Get(ratelimit.NewConcurrent(s.Keeper(t, nil), "api", 10, time.Second, 2, nil))(t)
		lease := must.Get(a.Acquire(t.Context()))(t)
		must.OK(t, b.Pause(t.Context(), 10*time.Minute))
		time.Sleep(5 * time.Minute) // ten ttls
		if err := lease.Err(); err != nil {
			t.Errorf("the lease ended in the pause: %v", err)
		}
		var limited *ratelimit.LimitedError
		if _, err := b.TryAcquire(t.Context()); !errors.As(err, &limited) || limited.RetryAfter > 5*time.Minute || limited.RetryAfter < 299*time.Second {
			t.Errorf("%v, want a LimitedError of 5m", err)
		}
		must.Report(t, lease.Release(t.Context()))
	})
}

// TestPauseOutlastsTheMetadata: nobody calls in a pause that is longer than metadata of an unused name are kept.
func TestPauseOutlastsTheMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		requirePause(t, a, ratelimit.MaxPause)
		time.Sleep(ratelimit.MaxPause - time.Second)
		r, err := b.Allow(t.Context())
		check.That(t, err == nil && !r.Allowed && r.RetryAfter == time.Second, "a second before its end: %+v, %v", r, err)
	})
}

func TestPauseBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, _ := pair(t)
		for _, d := range []time.Duration{-1, 0, time.Millisecond - 1, ratelimit.MaxPause + 1} {
			err := a.Pause(t.Context(), d)
			check.That(t, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), d.String()), "%v: %v", d, err)
		}
		requireAvailable(t, a, 10)
		requirePause(t, a, time.Millisecond+1) // rounded up
		if r, err := a.Allow(t.Context()); err != nil || r.RetryAfter != 2*time.Millisecond {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// TestPauseWithoutReply: what may have been done is not done again later.
func TestPauseWithoutReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a, _ := pair(t)
		requireAvailable(t, a, 10)
		s.Unreachable()
		ctx := must.Within(t, time.Second)
		check.Is(t, a.Pause(ctx, time.Hour), lockkeeper.ErrUnavailable, "the error")
		s.Restore()
		time.Sleep(time.Minute)
		requireAvailable(t, a, 10)
	})
}
