package conformance

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

const childRole = "LOCKKEEPER_CHILD"

// child runs in a child process: it locks a name, prints so, and does what its role says.
func child(p Primitive, role string) {
	ctx := context.Background()
	// What the test checks must not depend on how long the machine takes to freeze the process and to continue it.
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS"), ReadTimeout: time.Minute})
	k, err := lockkeeper.New(rdb, &lockkeeper.Options{
		HeartbeatInterval: heartbeatInterval, HeartbeatTimeout: 3 * heartbeatInterval,
		Retry:   lockkeeper.RetryPolicy{MaxElapsed: time.Minute},
		NoOwner: true, // so that the first write at the server is the request
	})
	exitOn(err)
	role, arg, _ := strings.Cut(role, " ")
	o := Options{TTL: 2 * ttl}
	if role == "count" {
		o.TTL = lockkeeper.DefaultTTL // no process crashes there, and the machine may be slow
	}
	l, err := p.New(k, "x", o)
	exitOn(err)
	switch role {
	case "count": // increments a counter in Redis this many times, in two steps
		n, _ := strconv.Atoi(arg)
		for range n {
			exitOn(l.Do(ctx, func(ctx context.Context, _ uint64) error {
				v, err := rdb.Get(ctx, "counter").Int()
				if err != nil && err != redis.Nil {
					return err
				}
				return rdb.Set(ctx, "counter", v+1, 0).Err()
			}))
		}
	case "linger":
		lingerInChild(k)
	case "hold": // locks, holds until its standard input ends, and reports a loss
		lease, err := l.Lock(ctx)
		exitOn(err)
		fmt.Println("held", lease.Fence())
		go func() {
			<-lease.Done()
			fmt.Println("over", lease.Err())
		}()
		_, _ = io.Copy(io.Discard, os.Stdin)
		fmt.Println("released", lease.Release(ctx))
	}
	exitOn(k.Close())
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func startChild(t *testing.T, s *redistest.Server, role string) *redistest.Child {
	t.Helper()
	return redistest.StartChild(t, childRole+"="+role, "REDIS="+s.Addr)
}

func startHolder(t *testing.T, s *redistest.Server) *redistest.Child {
	t.Helper()
	c := startChild(t, s, "hold")
	c.WaitForLine("held")
	return c
}

func stopHolder(c *redistest.Child) {
	c.Stop()
	c.WaitForLine("released <nil>")
}

// processes runs a primitive in several processes, and kills and freezes them.
func processes(t *testing.T, p Primitive) {
	ctx := context.Background()
	queue := "{lock:x}:" + p.Kind + ":queue"
	run := func(name string, test func(t *testing.T, s *redistest.Server)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, redistest.Start(t))
		})
	}
	waiting := func(t *testing.T, s *redistest.Server, n int) {
		t.Helper()
		rdb := s.Client()
		eventually(t, fmt.Sprintf("%d waiters", n), func() bool {
			return rdb.ZCount(ctx, queue, "-inf", protocol.BehindWaiters).Val() == int64(n)
		})
	}
	run("shared_counter_over_processes", func(t *testing.T, s *redistest.Server) {
		var ps []*redistest.Child
		for range 4 {
			ps = append(ps, startChild(t, s, "count 100"))
		}
		for _, c := range ps {
			for range c.Lines {
			}
			must.Report(t, c.Wait())
		}
		counted := must.Get(s.Client().Get(ctx, "counter").Int())(t)
		check.That(t, counted == 400, "counted %d of 400", counted)
	})
	run("killed_holder_replaced_at_lease_expiry", func(t *testing.T, s *redistest.Server) {
		a := startHolder(t, s)
		b := startChild(t, s, "hold")
		waiting(t, s, 1)
		a.Signal(syscall.SIGKILL)
		start := time.Now()
		b.WaitForLine("held")
		check.Between(t, time.Since(start), 0, 3*ttl, "the next holder was granted the lock after the kill, of a holder with a lease of 2 ttl")
	})
	run("killed_waiter_causes_no_delay", func(t *testing.T, s *redistest.Server) {
		a := startHolder(t, s)
		dead := startChild(t, s, "hold")
		waiting(t, s, 1)
		b := startChild(t, s, "hold")
		waiting(t, s, 2)
		dead.Signal(syscall.SIGKILL)
		_ = dead.Wait()
		stopHolder(a)
		b.WaitForLine("held")
		b.Signal(syscall.SIGKILL)
	})
	run("frozen_holder_sees_loss_on_resume", func(t *testing.T, s *redistest.Server) {
		a := startChild(t, s, "hold")
		first := a.WaitForLine("held")
		b := startChild(t, s, "hold")
		waiting(t, s, 1)
		a.Signal(syscall.SIGSTOP)
		second := b.WaitForLine("held")
		check.That(t, first < second, "%s, then %s", first, second)
		a.Signal(syscall.SIGCONT)
		check.That(t, strings.Contains(a.WaitForLine("over"), "lease lost"), "it reports no loss")
		a.Stop()
		check.That(t, strings.Contains(a.WaitForLine("released"), "lease lost"), "its release reports no loss")
		stopHolder(b)
	})
	run("frozen_waiters_delay_by_one_heartbeat_timeout", func(t *testing.T, s *redistest.Server) {
		a := startHolder(t, s)
		var frozen []*redistest.Child
		for i := range 3 {
			frozen = append(frozen, startChild(t, s, "hold"))
			waiting(t, s, i+1)
		}
		b := startChild(t, s, "hold")
		waiting(t, s, 4)
		for _, f := range frozen {
			f.Signal(syscall.SIGSTOP)
		}
		stopHolder(a)
		start := time.Now()
		b.WaitForLine("held")
		check.Between(t, time.Since(start), 0, 2*3*heartbeatInterval, "three frozen waiters delayed the queue")
		// When they are continued, they rejoin the queue and are granted the lock one after the other.
		for _, f := range frozen {
			f.Signal(syscall.SIGCONT)
		}
		b.Stop()
		for _, f := range frozen {
			f.Stop()
		}
		for _, f := range frozen {
			f.WaitForLine("released <nil>")
		}
	})
	run("process_frozen_longer_than_requested_lease", func(t *testing.T, s *redistest.Server) {
		first := startHolder(t, s) // loads the scripts
		stopHolder(first)
		must.OK(t, first.Wait())
		admin := s.Client()
		// The server delays the request until the process is frozen, and grants it then.
		must.OK(t, admin.Do(ctx, "client", "pause", 60_000, "write").Err())
		a := startChild(t, s, "hold")
		eventually(t, "the request", func() bool { return strings.Contains(admin.ClientList(ctx).Val(), " flags=b ") })
		a.Signal(syscall.SIGSTOP)
		must.OK(t, admin.Do(ctx, "client", "unpause").Err())
		eventually(t, "the grant", func() bool { return admin.Exists(ctx, p.Key("x")).Val() == 1 })
		time.Sleep(2*ttl + ttl/2)
		a.Signal(syscall.SIGCONT)
		start := time.Now()
		a.WaitForLine("held")
		check.That(t, time.Since(start) <= 2*ttl, "it got the free lock after %v", time.Since(start))
		stopHolder(a)
	})
	run("server_frozen_longer_than_lease", func(t *testing.T, s *redistest.Server) {
		k := newKeeper(t, redistest.Connect(s), lockkeeper.Options{})
		within := must.Within(t, 30*time.Second)
		var l []Locker
		for i := range 3 {
			l = append(l, must.Get(p.New(k, fmt.Sprintf("x%d", i), Options{TTL: ttl}))(t))
		}
		calls := []func() error{
			func() error { return lockOnce(within, l[0].Lock) },
			func() error { return lockOnce(ctx, l[1].Lock) }, // which cannot end
			func() error { return lockOnce(within, l[2].TryLock) },
		}
		for range 20 { // opens connections and loads the scripts
			parallel(len(calls), func(i int) { _ = calls[i]() })
		}
		s.Freeze()
		var ended []chan error
		for _, call := range calls {
			ended = append(ended, inBackground(call))
		}
		time.Sleep(3 * ttl / 2)
		s.Thaw()
		late := time.Now().Add(10 * time.Second)
		for i, ch := range ended {
			err := must.Receive(t, ch, time.Until(late), "the return of a call though the lock is free")
			check.Is(t, err, nil, "call %d", i)
		}
	})
	run("server_freeze_leaves_no_stale_lease", func(t *testing.T, s *redistest.Server) {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr, ReadTimeout: 50 * time.Millisecond})
		t.Cleanup(func() { _ = rdb.Close() })
		k := newKeeper(t, rdb, lockkeeper.Options{})
		l := must.Get(p.New(k, "x", Options{TTL: 30 * time.Second}))(t)
		for i := range 10 {
			s.Freeze()
			must.That(t, check.ErrorOf(l.Lock(must.Within(t, 150*time.Millisecond))) != nil, "a frozen server granted a lock")
			s.Thaw()
			err := lockOnce(must.Within(t, 10*time.Second), l.Lock)
			must.That(t, err == nil, "round %d: an unknown lease holds the lock: %v", i, err)
		}
	})
}
