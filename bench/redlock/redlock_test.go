// Package redlock_test sets package redlock beside redsync on the same servers: that they exclude each other, and how long
// each takes, in turns in one run.
//
//	cd bench
//	go test -race ./redlock
//	go test -run '^$' -bench . -benchtime 3s ./redlock
//
// An operation is one Lock with its Release by one goroutine:
//
//	ns/op      the median of the blocks' times per operation, ours
//	x-redsync  ours over that of redsync, so below 1 we are better; x-failfast with its option SetFailFast, by which it
//	           waits for no more answers than it needs when it locks
//
// Ours come with a fence, are renewed, and have reported no loss; those of redsync are neither.
package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/redis/go-redis/v9"
)

const ttl = 30 * time.Second

var ctx = context.Background()

func servers(t testing.TB, n int) []*redistest.Server {
	t.Helper()
	var list []*redistest.Server
	for range n {
		list = append(list, redistest.Start(t))
	}
	return list
}

func ours(t testing.TB, list []*redistest.Server, name string) *redlock.Lock {
	t.Helper()
	var ks []*lockkeeper.Keeper
	for _, s := range list {
		k := must.Get(lockkeeper.New(s.Client(), &lockkeeper.Options{NoPrefix: true, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}))(t)
		t.Cleanup(func() { _ = k.Close() })
		ks = append(ks, k)
	}
	l := must.Get(redlock.New(ks, name, &redlock.Options{TTL: ttl}))(t)
	return l
}

func theirs(list []*redistest.Server, name string, opts ...redsync.Option) *redsync.Mutex {
	var pools []syncredis.Pool
	for _, s := range list {
		pools = append(pools, goredis.NewPool(s.Client()))
	}
	return redsync.New(pools...).NewMutex(name, append([]redsync.Option{redsync.WithExpiry(ttl)}, opts...)...)
}

func TestRedlockAndRedsyncExcludeEachOther(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprintf("%d_servers", n), func(t *testing.T) {
			s := servers(t, n)
			l, m := ours(t, s, "orders:42"), theirs(s, "orders:42", redsync.WithTries(1))
			lease := must.Get(l.Lock(ctx))(t)
			var taken *redsync.ErrTaken
			if err := m.Lock(); !errors.As(err, &taken) {
				t.Errorf("redsync while we hold: %v", err)
			}
			if err := lease.Err(); err != nil {
				t.Errorf("our lease after redsync's try: %v", err)
			}
			must.Report(t, lease.Release(ctx))
			free(t, s, "orders:42")
			if err := m.Lock(); err != nil {
				t.Fatalf("redsync after our release: %v", err)
			}
			if _, err := l.TryLock(ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
				t.Errorf("our try while redsync holds: %v", err)
			}
			if ok, err := m.Unlock(); err != nil || !ok {
				t.Errorf("redsync's unlock after our try: %v, %v", ok, err)
			}
			lease = must.Get(l.Lock(ctx))(t)
			// It can be that ours are not everywhere yet, so that redsync's Unlock finds nothing of its own anywhere.
			if ok, err := m.Unlock(); ok {
				t.Errorf("redsync has released ours: %v", err)
			}
			must.Report(t, lease.Extend(ctx, ttl))
			must.Report(t, lease.Release(ctx))
		})
	}
}

// free waits until no server's part is with anybody: a release returns when a majority has confirmed it.
func free(t *testing.T, list []*redistest.Server, key string) {
	t.Helper()
	for _, s := range list {
		s.Await("0", func(ctx context.Context, c *redis.Client) (string, error) {
			n, err := c.Exists(ctx, key).Result()
			return fmt.Sprint(n), err
		})
	}
}

// TestRedlockAndRedsyncCountTogether has goroutines of both count on one variable that nothing else protects.
func TestRedlockAndRedsyncCountTogether(t *testing.T) {
	s := servers(t, 3)
	const each, rounds = 2, 15
	rdb := s[0].Client()
	var wg sync.WaitGroup
	count := 0
	inc := func() {
		seen := count
		must.Report(t, rdb.Ping(ctx).Err()) // time for others to interfere
		count = seen + 1
	}
	for range each {
		l := ours(t, s, "x")
		wg.Go(func() {
			for range rounds {
				must.Report(t, l.Do(ctx, func(context.Context, uint64) error { inc(); return nil }))
			}
		})
		m := theirs(s, "x", redsync.WithTries(1000), redsync.WithRetryDelay(20*time.Millisecond))
		wg.Go(func() {
			for range rounds {
				if err := m.Lock(); err != nil {
					t.Error(err)
					return
				}
				inc()
				if ok, err := m.Unlock(); err != nil || !ok {
					t.Errorf("redsync's unlock: %v, %v", ok, err)
				}
			}
		})
	}
	wg.Wait()
	if count != 2*each*rounds {
		t.Errorf("counted to %d, want %d", count, 2*each*rounds)
	}
}

// BenchmarkServers is 3 and 5 servers, all of them well, or one of them standing still.
func BenchmarkServers(b *testing.B) {
	for _, n := range []int{3, 5} {
		for _, frozen := range []bool{false, true} {
			name := fmt.Sprintf("%d", n)
			if frozen {
				name += "-one-frozen"
			}
			b.Run(name, func(b *testing.B) { compare(b, n, frozen) })
		}
	}
}

func compare(b *testing.B, n int, frozen bool) {
	s := servers(b, n)
	l := ours(b, s, "ours")
	use := func(m *redsync.Mutex, lax bool) func() error {
		return func() error {
			if err := m.Lock(); err != nil {
				return err
			}
			// With a server that stands still it says that the lock had expired, and so it does now and then with
			// SetFailFast, which may unlock before it has locked everywhere.
			if _, err := m.Unlock(); err != nil && !frozen && !lax {
				return err
			}
			return nil
		}
	}
	sides := []struct {
		name string
		once func() error
	}{
		{"lockkeeper", func() error {
			lease, err := l.Lock(ctx)
			if err == nil {
				err = lease.Release(ctx)
			}
			return err
		}},
		{"redsync", use(theirs(s, "theirs"), false)},
		{"failfast", use(theirs(s, "fast", redsync.WithFailFast(true)), true)},
	}
	block := 200
	took := make([][]float64, len(sides))
	run := func(i, ops int) float64 {
		start := time.Now()
		for range ops {
			if err := sides[i].once(); err != nil {
				b.Errorf("%s: %v", sides[i].name, err)
			}
		}
		return float64(time.Since(start)) / float64(ops)
	}
	for i := range sides {
		run(i, 20)
	}
	if frozen {
		s[n-1].Freeze()
		defer s[n-1].Thaw()
		block = 20
	}
	b.ResetTimer()
	for round, left := 0, b.N; left > 0; round++ {
		ops := min(block, left)
		left -= ops
		for i := range sides {
			i = (round + i) % len(sides)
			if frozen && i > 0 {
				took[i] = append(took[i], run(i, 1)) // they take seconds
				continue
			}
			took[i] = append(took[i], run(i, ops))
		}
	}
	b.StopTimer()
	median := func(list []float64) float64 {
		slices.Sort(list)
		return list[len(list)/2]
	}
	b.ReportMetric(median(took[0]), "ns/op")
	for i, side := range sides[1:] {
		b.ReportMetric(median(took[0])/median(took[i+1]), "x-"+side.name)
	}
}
