package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/redis/go-redis/v9"
)

// These tests kill and freeze real servers and processes. Machines can be slow, so what must be quick is compared with something
// that takes far longer.
const (
	long = 10 * time.Second // TTL of leases that must not expire during a test
	soon = 3 * time.Second  // limit for everything that does not wait for a lease to expire
)

func startServers(t *testing.T) (list []*redistest.Server) {
	t.Helper()
	redistest.RequireBinary(t)
	for range 3 {
		list = append(list, redistest.Start(t))
	}
	return list
}

func addrsOf(servers []*redistest.Server) (addrs []string) {
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// newLock returns a lock on the servers of these addresses with keepers of its own, as another process has.
func newLock(t testing.TB, addrs []string, o redlock.Options) *redlock.Lock {
	t.Helper()
	l, end, err := dial(addrs, o)
	must.OK(t, err)
	t.Cleanup(end)
	return l
}

func dial(addrs []string, o redlock.Options) (l *redlock.Lock, end func(), err error) {
	var ks []*lockkeeper.Keeper
	var rdbs []*redis.Client
	for _, addr := range addrs {
		rdb := redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1, ReadTimeout: time.Second})
		k, err := lockkeeper.New(rdb, &lockkeeper.Options{
			Retry: lockkeeper.RetryPolicy{MaxElapsed: time.Second}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return nil, nil, err
		}
		ks, rdbs = append(ks, k), append(rdbs, rdb)
	}
	l, err = redlock.New(ks, "x", &o)
	return l, func() {
		for i, k := range ks {
			_, _ = k.Close(), rdbs[i].Close()
		}
	}, err
}

// round acquires and releases the lock, and returns how long that took.
func round(t *testing.T, l *redlock.Lock) time.Duration {
	t.Helper()
	ctx := must.Within(t, 20*time.Second)
	start := time.Now()
	lease := must.Get(l.Lock(ctx))(t)
	must.OK(t, lease.Release(ctx))
	return time.Since(start)
}

func serverErrors(t *testing.T, err error) []error {
	t.Helper()
	var all *redlock.Error
	must.That(t, errors.As(err, &all), "%v is not an *Error", err)
	return []error{all.Servers[0].Err, all.Servers[1].Err, all.Servers[2].Err}
}

// away stops servers and starts them again, without their data if they were killed.
var away = map[string][2]func(*redistest.Server){
	"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
	"frozen": {(*redistest.Server).Freeze, (*redistest.Server).Thaw},
}

func TestRealServersMinorityDown(t *testing.T) {
	t.Parallel()
	for what, do := range away {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := startServers(t)
			l := newLock(t, addrsOf(s), redlock.Options{TTL: long})
			round(t, l)
			held := must.Get(l.Lock(t.Context()))(t)
			do[0](s[1])
			start := time.Now()
			must.Report(t, held.Release(t.Context()))
			for range 5 {
				round(t, l)
			}
			d := time.Since(start)
			check.That(t, d <= soon, "with one server %s, a release and five rounds took %v", what, d)
			lease := must.Get(l.Lock(t.Context()))(t)
			do[1](s[1])
			check.Is(t, check.ErrorOf(newLock(t, addrsOf(s), redlock.Options{TTL: long}).TryLock(t.Context())), lockkeeper.ErrNotAcquired, "the error")
			must.Report(t, lease.Release(t.Context()))
			noStaleLease(t, s)
		})
	}
}

func TestRealServersMajorityDown(t *testing.T) {
	t.Parallel()
	for what, do := range away {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := startServers(t)
			l := newLock(t, addrsOf(s), redlock.Options{TTL: long})
			round(t, l)
			do[0](s[0])
			do[0](s[2])
			start := time.Now()
			_, err := l.TryLock(t.Context())
			check.That(t, err != nil && !errors.Is(err, lockkeeper.ErrNotAcquired), "a try without a majority: %v", err)
			said := serverErrors(t, err)
			check.That(t, said[0] != nil && said[1] == nil && said[2] != nil, "the servers' answers are %v", said)
			if _, err = l.Lock(t.Context()); err == nil || errors.Is(err, lockkeeper.ErrNotAcquired) {
				t.Errorf("without a majority: %v", err)
			}
			if d := time.Since(start); d > long-time.Second {
				t.Errorf("the errors took %v", d)
			}
			do[1](s[0])
			do[1](s[2])
			if d := round(t, l); d > soon+3*time.Second {
				t.Errorf("after the servers were started, a round took %v", d)
			}
			noStaleLease(t, s)
		})
	}
}

// noStaleLease waits until no server has an owner of the lock, which must be long before a lease would expire.
func noStaleLease(t *testing.T, servers []*redistest.Server) {
	t.Helper()
	start := time.Now()
	for _, s := range servers {
		s.Await("0", func(ctx context.Context, c redistest.Client) (string, error) {
			n, err := c.Exists(ctx, "lock:x").Result()
			return fmt.Sprint(n), err
		})
	}
	d := time.Since(start)
	check.That(t, d <= long/2, "a server had an owner for %v", d)
}

// TestMinUptimeExcludesServerWithDataLoss: servers 1 and 2 have granted the lease. Server 2 restarts without its data, so another
// process could acquire a majority of 2 and 3.
func TestMinUptimeExcludesServerWithDataLoss(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		delay time.Duration
	}{{"two_holders_without_min_uptime", 0}, {"excluded_with_min_uptime", 5 * time.Second}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := startServers(t)
			o := redlock.Options{TTL: 4 * time.Second, ServerTimeout: 200 * time.Millisecond, MinUptime: c.delay, NoRenewal: true}
			a, b := newLock(t, addrsOf(s), o), newLock(t, addrsOf(s), o)
			ctx := must.Within(t, time.Minute)
			for _, l := range []*redlock.Lock{a, b} { // until all servers count
				for {
					lease, err := l.TryLock(ctx)
					if err == nil {
						_ = lease.Release(ctx)
						break
					}
					if ctx.Err() != nil {
						t.Fatal(err)
					}
					time.Sleep(20 * time.Millisecond)
				}
			}
			noStaleLease(t, s)
			// For as long as the lease may be requested at the third server.
			must.OK(t, s[2].Client().Set(ctx, "lock:x", "another's", 2*time.Second).Err())
			first := must.Get(a.Lock(ctx))(t)
			noStaleLease(t, s[2:])
			s[1].Kill()
			s[1].Restart()
			if c.delay == 0 {
				second, err := b.Lock(ctx)
				must.That(t, err == nil && first.Err() == nil, "without MinUptime there should be two holders: %v, %v", err, first.Err())
				_ = second.Release(ctx)
				return
			}
			for young := false; !young; {
				second, err := b.TryLock(ctx)
				lost := first.Err()
				must.That(t, lost == nil, "the first lease ended too early: %v", lost)
				must.That(t, err != nil, "two holders: fences %d and %d", first.Fence(), second.Fence())
				said := serverErrors(t, err)[1]
				young = said != nil && strings.Contains(said.Error(), "restarted recently")
			}
			second := must.Get(b.Lock(ctx))(t)
			check.That(t, first.Err() != nil && second.Fence() > first.Fence(),
				"fence %d after %d, the first lease: %v", second.Fence(), first.Fence(), first.Err())
			_ = second.Release(ctx)
		})
	}
}

// childServers is the environment variable that makes the test binary run child, with these servers.
const childServers = "LOCKKEEPER_SERVERS"

// child acquires the lock, prints that, holds it until its standard input ends, and prints whether it was lost.
func child() {
	l, end, err := dial(strings.Split(os.Getenv(childServers), ","), redlock.Options{TTL: 3 * time.Second})
	if err == nil {
		var lease *lockkeeper.Lease
		if lease, err = l.Lock(context.Background()); err == nil {
			fmt.Println("held", lease.Fence())
			go func() {
				<-lease.Done()
				fmt.Println("over", errors.Is(lease.Err(), lockkeeper.ErrLost))
			}()
			_, _ = io.Copy(io.Discard, os.Stdin)
			fmt.Println("released", errors.Is(lease.Release(context.Background()), lockkeeper.ErrLost))
			end()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func spawn(t *testing.T, servers []*redistest.Server) *redistest.Child {
	t.Helper()
	return redistest.StartChild(t, childServers+"="+strings.Join(addrsOf(servers), ","))
}

func TestKilledAndFrozenProcesses(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	a := spawn(t, s)
	first := a.WaitForLine("held")
	b := spawn(t, s)
	a.Signal(syscall.SIGKILL)
	second := b.WaitForLine("held")
	c := spawn(t, s)
	b.Signal(syscall.SIGSTOP)
	third := c.WaitForLine("held")
	check.That(t, first < second && second < third, "%s, then %s, then %s", first, second, third)
	b.Signal(syscall.SIGCONT)
	b.WaitForLine("over true")
	b.Stop()
	b.WaitForLine("released true")
	c.Stop()
	c.WaitForLine("released false")
}
