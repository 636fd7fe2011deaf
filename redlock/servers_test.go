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
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/redis/go-redis/v9"
)

// Real servers, and processes, that are killed and frozen. Machines can be slow, so what has to be quick is far quicker
// than what it must not wait for.
const (
	long = 10 * time.Second // of leases that must not end in a test
	soon = 3 * time.Second  // within which all is done that waits for no lease to end
)

func startServers(t *testing.T, n int) []*redistest.Server {
	t.Helper()
	var list []*redistest.Server
	for range n {
		list = append(list, redistest.Start(t))
	}
	return list
}

// newLock is the lock of a process on these servers.
func newLock(t testing.TB, servers []*redistest.Server, o redlock.Options) *redlock.Lock {
	t.Helper()
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	l, end, err := dial(addrs, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return l
}

func dial(addrs []string, o redlock.Options) (l *redlock.Lock, end func(), err error) {
	var ks []*lockkeeper.Keeper
	var rdbs []*redis.Client
	for _, addr := range addrs {
		rdb := redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1, ReadTimeout: time.Second})
		k, err := lockkeeper.New(rdb, &lockkeeper.Options{
			Retry: lockkeeper.RetryPolicy{MaxElapsed: time.Second}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		})
		if err != nil {
			return nil, nil, err
		}
		ks, rdbs = append(ks, k), append(rdbs, rdb)
	}
	l, err = redlock.New(ks, "x", &o)
	return l, func() {
		for i, k := range ks {
			_ = k.Close()
			_ = rdbs[i].Close()
		}
	}, err
}

// round takes the lock and gives it back, and returns how long that took.
func round(t *testing.T, l *redlock.Lock) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	start := time.Now()
	lease, err := l.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

func serverErrors(t *testing.T, err error) []error {
	t.Helper()
	var all *redlock.Error
	if !errors.As(err, &all) {
		t.Fatalf("%v is not an *Error", err)
	}
	var list []error
	for _, s := range all.Servers {
		list = append(list, s.Err)
	}
	return list
}

// away takes servers away and brings them back, without their data if they were killed.
var away = map[string][2]func(*redistest.Server){
	"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
	"frozen": {(*redistest.Server).Freeze, (*redistest.Server).Thaw},
}

func TestRealServersMinorityDown(t *testing.T) {
	redistest.RequireBinary(t)
	for what, do := range away {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := startServers(t, 3)
			l := newLock(t, s, redlock.Options{TTL: long})
			round(t, l)
			held, err := l.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			do[0](s[1])
			start := time.Now()
			if err := held.Release(t.Context()); err != nil {
				t.Error(err)
			}
			for range 5 {
				round(t, l)
			}
			if d := time.Since(start); d > soon {
				t.Errorf("with one server %s, a release and five rounds took %v", what, d)
			}
			lease, err := l.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			do[1](s[1])
			if _, err := newLock(t, s, redlock.Options{TTL: long}).TryLock(t.Context()); !errors.Is(err, lockkeeper.ErrNotAcquired) {
				t.Errorf("a try while the lock is held: %v", err)
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
			noStaleLease(t, s)
		})
	}
}

func TestRealServersMajorityDown(t *testing.T) {
	redistest.RequireBinary(t)
	for what, do := range away {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := startServers(t, 3)
			l := newLock(t, s, redlock.Options{TTL: long})
			round(t, l)
			do[0](s[0])
			do[0](s[2])
			start := time.Now()
			_, err := l.TryLock(t.Context())
			if err == nil || errors.Is(err, lockkeeper.ErrNotAcquired) {
				t.Errorf("a try without a majority: %v", err)
			}
			said := serverErrors(t, err)
			if said[0] == nil || said[1] != nil || said[2] == nil {
				t.Errorf("the servers said %v", said)
			}
			if _, err = l.Lock(t.Context()); err == nil || errors.Is(err, lockkeeper.ErrNotAcquired) {
				t.Errorf("without a majority: %v", err)
			}
			if d := time.Since(start); d > long-time.Second {
				t.Errorf("the errors took %v", d)
			}
			do[1](s[0])
			do[1](s[2])
			if d := round(t, l); d > soon+3*time.Second {
				t.Errorf("when they were back, a round took %v", d)
			}
			noStaleLease(t, s)
		})
	}
}

// noStaleLease waits until no server's part of the lock is with anybody, which must be long before a lease would end.
func noStaleLease(t *testing.T, servers []*redistest.Server) {
	t.Helper()
	start := time.Now()
	for _, s := range servers {
		s.Await("0", func(ctx context.Context, c *redis.Client) (string, error) {
			n, err := c.Exists(ctx, "lock:x").Result()
			return fmt.Sprint(n), err
		})
	}
	if d := time.Since(start); d > long/2 {
		t.Errorf("a part of the lock was held for %v", d)
	}
}

// A majority lies on servers 1 and 2. Server 2 restarts without its data, so 2 and 3 could be another's.
func TestMinUptimeExcludesServerWithDataLoss(t *testing.T) {
	redistest.RequireBinary(t)
	for _, c := range []struct {
		name  string
		delay time.Duration
	}{{"two_holders_without_min_uptime", 0}, {"excluded_with_min_uptime", 5 * time.Second}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := startServers(t, 3)
			o := redlock.Options{TTL: 4 * time.Second, ServerTimeout: 200 * time.Millisecond, MinUptime: c.delay, NoRenewal: true}
			a, b := newLock(t, s, o), newLock(t, s, o)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for _, l := range []*redlock.Lock{a, b} { // until all of them count
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
			// Until the third has been asked, which the lease does not wait for.
			if err := s[2].Client().Set(ctx, "lock:x", "another's", 500*time.Millisecond).Err(); err != nil {
				t.Fatal(err)
			}
			first, err := a.Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			noStaleLease(t, s[2:])
			s[1].Kill()
			s[1].Restart()
			if c.delay == 0 {
				second, err := b.Lock(ctx)
				if err != nil || first.Err() != nil {
					t.Fatalf("two holders are what the option is for; there is one: %v, %v", err, first.Err())
				}
				_ = second.Release(ctx)
				return
			}
			for young := false; !young; {
				second, err := b.TryLock(ctx)
				if lost := first.Err(); lost != nil {
					t.Fatalf("the first lease is over before anything was seen: %v", lost)
				}
				if err == nil {
					t.Fatalf("two holders: fences %d and %d", first.Fence(), second.Fence())
				}
				said := serverErrors(t, err)[1]
				young = said != nil && strings.Contains(said.Error(), "restarted recently")
			}
			second, err := b.Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if first.Err() == nil || second.Fence() <= first.Fence() {
				t.Errorf("fence %d after %d, the first lease: %v", second.Fence(), first.Fence(), first.Err())
			}
			_ = second.Release(ctx)
		})
	}
}

// childServers, in the environment, makes the test binary a process that locks on these servers.
const childServers = "LOCKKEEPER_SERVERS"

// child locks, says so, holds until its standard input ends, and tells of a loss.
func child() {
	l, end, err := dial(strings.Split(os.Getenv(childServers), ","), redlock.Options{TTL: 1200 * time.Millisecond})
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
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	return redistest.StartChild(t, childServers+"="+strings.Join(addrs, ","))
}

func TestKilledAndFrozenProcesses(t *testing.T) {
	redistest.RequireBinary(t)
	t.Parallel()
	s := startServers(t, 3)
	a := spawn(t, s)
	first := a.WaitForLine("held")
	b := spawn(t, s)
	a.Signal(syscall.SIGKILL)
	second := b.WaitForLine("held")
	c := spawn(t, s)
	b.Signal(syscall.SIGSTOP)
	third := c.WaitForLine("held")
	if !(first < second && second < third) {
		t.Errorf("%s, then %s, then %s", first, second, third)
	}
	b.Signal(syscall.SIGCONT)
	b.WaitForLine("over true")
	b.Stop()
	b.WaitForLine("released true")
	c.Stop()
	c.WaitForLine("released false")
}
