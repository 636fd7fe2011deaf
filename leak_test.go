package lockkeeper_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
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
	rdb, disconnect := connect()
	l := &leaks{names: map[string]int{}}
	var err error
	l.Keeper, err = lockkeeper.New(rdb, &lockkeeper.Options{
		Hooks: lockkeeper.Hooks{Leaked: func(e lockkeeper.Event) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.names[e.Name]++
			if e.Token == "" || e.Fence == 0 || e.Request == 0 || e.Duration <= 0 {
				t.Errorf("%+v", e)
			}
		}},
		Logger: slog.New(slog.NewTextHandler(&l.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.Close()
		disconnect()
	})
	return l
}

func (l *leaks) lock(t *testing.T, name string, opts *mutex.Options) *lockkeeper.Lease {
	t.Helper()
	m, err := mutex.New(l.Keeper, name, opts)
	if err != nil {
		t.Fatal(err)
	}
	lease, err := m.TryLock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return lease
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
		if all > len(want) || time.Now().After(end) {
			t.Fatalf("reported %v, want %v", l.names, want)
		}
	}
}

func TestForgottenLeaseIsReported(t *testing.T) {
	l := newLeaks(t)
	ctx := context.Background()
	l.lock(t, "forgotten", nil)
	l.lock(t, "ends by itself", &mutex.Options{NoRenewal: true})
	if err := l.lock(t, "released", nil).Release(ctx); err != nil {
		t.Fatal(err)
	}
	used := l.lock(t, "in use", nil)
	working := l.lock(t, "its context is in use", nil).Context(ctx)

	rw, err := rwlock.New(l.Keeper, "upgraded", nil)
	if err != nil {
		t.Fatal(err)
	}
	read, err := rw.RLock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	write, err := rw.Upgrade(ctx, read)
	if err != nil {
		t.Fatal(err)
	}
	majority, err := redlock.New([]*lockkeeper.Keeper{l.Keeper}, "forgotten by a majority", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := majority.TryLock(ctx); err != nil {
		t.Fatal(err)
	}

	l.collect(t, "forgotten", "forgotten by a majority")
	if lockkeeper.LeaseFromContext(working).Err() != nil || used.Err() != nil || write.Err() != nil {
		t.Error("a lease has ended")
	}
	runtime.KeepAlive(working)
	runtime.KeepAlive(used)
	runtime.KeepAlive(write)
	l.collect(t, "forgotten", "forgotten by a majority", "its context is in use", "in use", "upgraded")
	if text := l.log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "unreachable") || !strings.Contains(text, "name=forgotten") &&
		!strings.Contains(text, `name="forgotten by a majority"`) {
		t.Errorf("log:\n%s", text)
	}
}

// BenchmarkWatchForLeak measures what it costs to notice leaks.
func BenchmarkWatchForLeak(b *testing.B) {
	rdb, disconnect := connect()
	defer disconnect()
	k, err := lockkeeper.New(rdb, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	m, err := mutex.New(k, "x", nil)
	if err != nil {
		b.Fatal(err)
	}
	lease, err := m.Lock(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	if err := lease.Release(context.Background()); err != nil {
		b.Fatal(err)
	}
	h := access.HandleOf(lease)
	b.ReportAllocs()
	for b.Loop() {
		access.WrapLease(h)
	}
}
