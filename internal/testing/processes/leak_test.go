package processes

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// connect returns a client of a server in real time, because the garbage collector does not know of a bubble.
func connect(t *testing.T) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// leaks is a keeper that notes reported leaks.
type leaks struct {
	*lockkeeper.Keeper
	mu    sync.Mutex
	names map[string]int
	log   bytes.Buffer // of the logger, which locks
}

func newLeaks(t *testing.T) *leaks {
	t.Helper()
	rdb := connect(t)
	l := &leaks{names: map[string]int{}}
	l.Keeper = must.Get(lockkeeper.New(rdb, &lockkeeper.Options{
		Hooks: lockkeeper.Hooks{Leaked: func(e lockkeeper.Event) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.names[e.Name]++
			check.That(t, e.Token != "" && e.Fence != 0 && e.Request != 0 && e.Duration > 0, "%+v", e)
		}},
		Logger: slog.New(slog.NewTextHandler(&l.log, nil)),
	}))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func (l *leaks) lock(t *testing.T, name string, opts *mutex.Options) *lockkeeper.Lease {
	t.Helper()
	m := must.Get(mutex.New(l.Keeper, name, opts))(t)
	return must.Get(m.TryLock(context.Background()))(t)
}

// collect collects garbage until these names, and no others, have been reported once.
func (l *leaks) collect(t *testing.T, want ...string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		runtime.GC()
		l.mu.Lock()
		found := 0
		for _, name := range want {
			found += l.names[name]
		}
		all := len(l.names)
		l.mu.Unlock()
		if found == len(want) && all == len(want) {
			return
		}
		must.That(t, all <= len(want) && !time.Now().After(end), "reported %v, want %v", l.names, want)
	}
}

func TestForgottenLeaseIsReported(t *testing.T) {
	l := newLeaks(t)
	ctx := context.Background()
	l.lock(t, "forgotten", nil)
	l.lock(t, "ends by itself", &mutex.Options{NoRenewal: true})
	must.OK(t, l.lock(t, "released", nil).Release(ctx))
	used := l.lock(t, "in use", nil)
	working := l.lock(t, "its context is in use", nil).Context(ctx)

	rw := must.Get(rwlock.New(l.Keeper, "upgraded", nil))(t)
	read := must.Get(rw.RLock(ctx))(t)
	must.OK(t, rw.Upgrade(ctx, read))
	majority := must.Get(redlock.New([]*lockkeeper.Keeper{l.Keeper}, "forgotten by a majority", nil))(t)
	must.Get(majority.TryLock(ctx))(t)

	l.collect(t, "forgotten", "forgotten by a majority")
	check.That(t, lockkeeper.LeaseFromContext(working).Err() == nil && used.Err() == nil && read.Err() == nil, "a lease has ended")
	runtime.KeepAlive(working)
	runtime.KeepAlive(used)
	runtime.KeepAlive(read)
	l.collect(t, "forgotten", "forgotten by a majority", "its context is in use", "in use", "upgraded")
	if text := l.log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "unreachable") || !strings.Contains(text, "name=forgotten") &&
		!strings.Contains(text, `name="forgotten by a majority"`) {
		t.Errorf("log:\n%s", text)
	}
}

// TestWaitingUpgradeIsNoLeak: while Upgrade waits, its caller need not refer to the lease.
func TestWaitingUpgradeIsNoLeak(t *testing.T) {
	l := newLeaks(t)
	ctx := t.Context()
	rw := must.Get(rwlock.New(l.Keeper, "upgraded", nil))(t)
	other := must.Get(rw.RLock(ctx))(t)
	upgraded := make(chan *lockkeeper.Lease, 1)
	go func(read *lockkeeper.Lease) {
		must.Report(t, rw.Upgrade(ctx, read))
		upgraded <- read
	}(must.Get(rw.RLock(ctx))(t))
	for waiting := false; !waiting; {
		waiting = len(must.Get(rw.Waiters(ctx))(t)) == 1
	}
	l.lock(t, "forgotten", nil)
	l.collect(t, "forgotten")
	must.OK(t, other.Release(ctx))
	must.OK(t, (<-upgraded).Release(ctx))
	l.collect(t, "forgotten")
}

// TestClosedKeeperIsCollected: a program whose hooks know its leases becomes unreachable with its keeper.
func TestClosedKeeperIsCollected(t *testing.T) {
	t.Parallel()
	type program struct {
		keeper *lockkeeper.Keeper
		leases []*lockkeeper.Lease
		lost   int
	}
	run := func() weak.Pointer[program] {
		rdb := connect(t)
		p := &program{}
		p.keeper = must.Get(lockkeeper.New(rdb, &lockkeeper.Options{Hooks: lockkeeper.Hooks{Lost: func(lockkeeper.Event) { p.lost++ }}}))(t)
		one := must.Get(mutex.New(p.keeper, "one server", nil))(t)
		majority := must.Get(redlock.New([]*lockkeeper.Keeper{p.keeper}, "a majority", nil))(t)
		for _, l := range []lockkeeper.Locker{one, majority} {
			lease := must.Get(l.TryLock(t.Context()))(t)
			p.leases = append(p.leases, lease)
		}
		must.OK(t, p.keeper.Close())
		return weak.Make(p)
	}
	w := run()
	for end := time.Now().Add(20 * time.Second); w.Value() != nil; time.Sleep(20 * time.Millisecond) {
		if runtime.GC(); time.Now().After(end) {
			t.Fatal("it is still reachable")
		}
	}
}
