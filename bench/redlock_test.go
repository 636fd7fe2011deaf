package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/redlock"
)

func servers(t testing.TB, n int) []*redistest.Server {
	t.Helper()
	var list []*redistest.Server
	for range n {
		list = append(list, redistest.Start(t))
	}
	return list
}

func ourRedlock(t testing.TB, list []*redistest.Server, name string) *redlock.Lock {
	t.Helper()
	var ks []*lockkeeper.Keeper
	for _, s := range list {
		ks = append(ks, keeper(t, redistest.Connect(s), lockkeeper.Options{NoPrefix: true}))
	}
	return must.Get(redlock.New(ks, name, &redlock.Options{TTL: ttl}))(t)
}

func theirRedlock(list []*redistest.Server, name string, opts ...redsync.Option) *redsync.Mutex {
	var pools []syncredis.Pool
	for _, s := range list {
		pools = append(pools, goredis.NewPool(redistest.Connect(s)))
	}
	return redsync.New(pools...).NewMutex(name, append([]redsync.Option{redsync.WithExpiry(ttl)}, opts...)...)
}

func TestRedlockAndRedsyncExcludeEachOther(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprintf("%d_servers", n), func(t *testing.T) {
			s := servers(t, n)
			l, m := ourRedlock(t, s, "orders:42"), theirRedlock(s, "orders:42", redsync.WithTries(1))
			lease := must.Get(l.Lock(ctx))(t)
			if err := m.Lock(); !errors.As(err, new(*redsync.ErrTaken)) {
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
			check.Is(t, check.ErrorOf(l.TryLock(ctx)), lockkeeper.ErrNotAcquired, "our try while redsync holds")
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
		s.Await("0", func(ctx context.Context, c redistest.Client) (string, error) {
			n, err := c.Exists(ctx, key).Result()
			return fmt.Sprint(n), err
		})
	}
}

// BenchmarkServers is a redlock beside redsync on 3 and 5 servers, all of them well, or one of them standing still. An operation is one
// Lock with its Release by one goroutine:
//
//	ns/op      the median of the blocks' times per operation, ours
//	x-redsync  ours over that of redsync, so below 1 we are better; x-failfast with its option SetFailFast, by which it
//	           waits for no more answers than it needs when it locks
//
// Ours come with a fence, are renewed, and have reported no loss; those of redsync are neither.
func BenchmarkServers(b *testing.B) {
	for _, n := range []int{3, 5} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { compareRedlocks(b, n, false) })
		b.Run(fmt.Sprint(n, "-one-frozen"), func(b *testing.B) { compareRedlocks(b, n, true) })
	}
}

func compareRedlocks(b *testing.B, n int, frozen bool) {
	s := servers(b, n)
	l := ourRedlock(b, s, "ours")
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
			return errors.Join(err, lease.Release(ctx))
		}},
		{"redsync", use(theirRedlock(s, "theirs"), false)},
		{"failfast", use(theirRedlock(s, "fast", redsync.WithFailFast(true)), true)},
	}
	took := make([][]float64, len(sides))
	run := func(i, ops int) float64 {
		start := time.Now()
		for range ops {
			err := sides[i].once()
			check.That(b, err == nil, "%s: %v", sides[i].name, err)
		}
		return float64(time.Since(start)) / float64(ops)
	}
	for i := range sides {
		run(i, 20)
	}
	block := 200
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
			} else {
				took[i] = append(took[i], run(i, ops))
			}
		}
	}
	b.StopTimer()
	ours := benchmarks.Median(took[0])
	b.ReportMetric(ours, "ns/op")
	for i, side := range sides[1:] {
		b.ReportMetric(ours/benchmarks.Median(took[i+1]), "x-"+side.name)
	}
}
