package mutex_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// TestExhaustedPool blocks every connection of the application's pool, on eight processors. No call may fail or be
// slow, no lease may be lost, and no call may use that pool.
func TestExhaustedPool(t *testing.T) {
	procs := runtime.GOMAXPROCS(8)
	t.Cleanup(func() { runtime.GOMAXPROCS(procs) })
	server := redistest.Start(t)
	var one sync.Mutex // deployments start at the same time, but each is used alone
	exhaustedPool := func(t *testing.T, rdb redis.UniversalClient, nodesOf func(context.Context) ([]*redis.Client, error)) {
		one.Lock()
		defer one.Unlock()
		exhaustedPool(t, rdb, nodesOf)
	}
	for _, pipelines := range []int{0, 1, 2} {
		t.Run(fmt.Sprintf("single server, PipelinePoolSize %d", pipelines), func(t *testing.T) {
			t.Parallel()
			rdb := redis.NewClient(&redis.Options{Addr: server.Addr, PoolSize: 4, PipelinePoolSize: pipelines})
			exhaustedPool(t, rdb, func(context.Context) ([]*redis.Client, error) { return []*redis.Client{rdb}, nil })
		})
	}
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartSentinel(t, 0)
		rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: s.Addrs, PoolSize: 4})
		exhaustedPool(t, rdb, func(context.Context) ([]*redis.Client, error) { return []*redis.Client{rdb}, nil })
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, 3, 0)
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), PoolSize: 4, PipelinePoolSize: 3})
		exhaustedPool(t, rdb, func(ctx context.Context) (list []*redis.Client, err error) {
			var mu sync.Mutex
			err = rdb.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
				mu.Lock()
				defer mu.Unlock()
				list = append(list, node)
				return nil
			})
			return list, err
		})
	})
}

func exhaustedPool(t *testing.T, rdb redis.UniversalClient, nodesOf func(context.Context) ([]*redis.Client, error)) {
	t.Cleanup(func() { _ = rdb.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	k := must.Get(lockkeeper.New(rdb, nil))(t)
	defer func() { _ = k.Close() }()
	lock := func(format string, args ...any) *mutex.Mutex {
		m, err := mutex.New(k, fmt.Sprintf(format, args...), &mutex.Options{TTL: 2 * time.Second})
		if err != nil {
			t.Error(err)
		}
		return m
	}

	nodes := must.Get(nodesOf(ctx))(t)
	before := make([]redis.PoolStats, len(nodes))
	for i, node := range nodes {
		size := node.Options().PoolSize
		for range size {
			conn := node.Conn() // taken until it is closed, as by a blocking command
			defer func() { _ = conn.Close() }()
			must.OK(t, conn.Ping(ctx).Err())
		}
		before[i] = *node.PoolStats()
	}
	var leases []*lockkeeper.Lease
	for i := range 300 {
		lease := must.Get(lock("held %d", i).Lock(ctx))(t)
		leases = append(leases, lease)
	}
	var slowest, pairs atomic.Int64
	var workers sync.WaitGroup
	end := time.Now().Add(time.Second) // during which every lease is renewed
	for i := range 40 {
		m := lock("taken %d", i)
		workers.Go(func() {
			for own := ctx; time.Now().Before(end); pairs.Add(1) {
				start := time.Now()
				lease, err := m.Lock(own)
				if err == nil {
					err = lease.Release(own)
				}
				if err != nil {
					t.Error(err)
					return
				}
				for took := int64(time.Since(start)); ; {
					if was := slowest.Load(); took <= was || slowest.CompareAndSwap(was, took) {
						break
					}
				}
				if i%2 == 0 {
					own = context.Background() // then a call may be sent inline, in the caller's goroutine
				}
			}
		})
	}
	workers.Wait()
	watched := must.Get(fair.New(k, "watched", nil))(t)
	if _, err := watched.Waiters(ctx); err != nil {
		t.Error(err)
	}
	for _, lease := range leases {
		must.Report(t, lease.Release(ctx))
	}
	t.Logf("%d pairs, the slowest took %v", pairs.Load(), time.Duration(slowest.Load()))
	if d := time.Duration(slowest.Load()); d > 4*time.Second { // the machine may be busy; go-redis waits 6 s for a connection of its pool
		t.Errorf("a call took %v", d)
	}
	for i, node := range nodes {
		now, was := node.PoolStats(), before[i]
		if n := now.Hits + now.Misses + now.WaitCount - was.Hits - was.Misses - was.WaitCount; n != 0 || now.Timeouts != 0 {
			t.Errorf("the application's pool was asked for a connection %d times, %d without success", n, now.Timeouts)
		}
		want := node.Options().PipelinePoolSize
		if want == 0 {
			want = redis.DefaultPipelinePoolSize
		}
		if n := now.PipelineStats.TotalConns; int(n) > want {
			t.Errorf("%d connections for pipelines, of %d", n, want)
		}
	}
}
