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

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/keepers"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

// leaks is a keeper that notes reported leaks.
type leaks struct {
	*lockkeeper.Keeper
	mu    sync.Mutex
	names map[string]int
	log   bytes.Buffer // of the logger, which locks
}

func newLeaks(t *testing.T) *leaks {
	t.Helper()
	rdb := redistest.At(t, miniredis.RunT(t).Addr()) // in real time, because the garbage collector does not know of a bubble
	l := &leaks{names: map[string]int{}}
	l.Keeper = keepers.New(t, rdb, &lockkeeper.Options{
		Hooks: lockkeeper.Hooks{Leaked: func(e lockkeeper.Event) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.names[e.Name]++
			check.That(t, e.Token != "" && e.Fence != 0 && e.Request != 0 && e.Duration > 0, "%+v", e)
		}},
		Logger: slog.New(slog.NewTextHandler(&l.log, nil)),
	})
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
