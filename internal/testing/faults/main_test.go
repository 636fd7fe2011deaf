package faults

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/parallel"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	quiet.Redis()
	if os.Getenv(childAddr) != "" {
		child()
		return
	}
	parallel.Tests("16")
	before := goleak.IgnoreCurrent()
	code := m.Run()
	if code == 0 {
		// go-redis checks once a second whether a pool that it dials for has been closed.
		dialing := goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
		if err := goleak.Find(before, redistest.IgnoreStarter(), dialing); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

func newKeeper(t *testing.T, rdb redis.UniversalClient) *lockkeeper.Keeper {
	t.Helper()
	k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{
		HeartbeatInterval: 500 * time.Millisecond, Logger: silent, Retry: lockkeeper.RetryPolicy{MaxElapsed: time.Minute},
	}))(t)
	t.Cleanup(func() { _ = k.Close() })
	return k
}

func inBackground(f func() error) chan error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	return ended
}

// use is one way to use a lock, and its share of the capacity.
type use struct {
	weight  int
	shares  bool          // see span.Shares
	pause   time.Duration // after each use at most, in addition to that of others
	acquire func(ctx context.Context) (*lockkeeper.Lease, error)

	// Of permits that are not held: how to take them, and the window. Then acquire is nil.
	take func(ctx context.Context, n int, fn func(ctx context.Context, fence uint64) error) error
	per  time.Duration
}

type primitive struct {
	kind     string
	capacity int  // of a name
	ordered  bool // its waiters are served in order
	uses     func(k *lockkeeper.Keeper, name string, ttl time.Duration) ([]use, error)
}

const (
	readers = 1000 // more than there are
	permits = 5
)

var primitives = []primitive{
	{"mutex", 1, false, func(k *lockkeeper.Keeper, name string, ttl time.Duration) ([]use, error) {
		l, err := mutex.New(k, name, &mutex.Options{TTL: ttl})
		return []use{{weight: 1, acquire: l.Lock}}, err
	}},
	{"fair", 1, true, func(k *lockkeeper.Keeper, name string, ttl time.Duration) ([]use, error) {
		l, err := fair.New(k, name, &fair.Options{TTL: ttl})
		return []use{{weight: 1, acquire: l.Lock}}, err
	}},
	{"rwlock", readers, false, func(k *lockkeeper.Keeper, name string, ttl time.Duration) ([]use, error) {
		l, err := rwlock.New(k, name, &rwlock.Options{TTL: ttl})
		return []use{{weight: readers, acquire: l.Lock}, {weight: 1, acquire: l.RLock}, {weight: 1, acquire: l.RLock}}, err
	}},
	{"semaphore", permits, true, func(k *lockkeeper.Keeper, name string, ttl time.Duration) ([]use, error) {
		s, err := semaphore.New(k, name, permits, &semaphore.Options{TTL: ttl})
		of := func(n int) use {
			return use{weight: n, acquire: func(ctx context.Context) (*lockkeeper.Lease, error) { return s.AcquireN(ctx, n) }}
		}
		return []use{of(1), of(2), of(permits)}, err
	}},
}
