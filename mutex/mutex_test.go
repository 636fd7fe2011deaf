package mutex_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/conformance"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/lingering"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

//go:noinline
func TestMain(m *testing.M) { conformance.Main(m, primitive) }

var primitive = conformance.Primitive{
	Kind: "mutex",
	Key:  func(name string) string { return "lock:" + name },
	New: func(k *lockkeeper.Keeper, name string, o conformance.Options) (conformance.Locker, error) {
		return mutex.New(k, name, &mutex.Options{TTL: o.TTL, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime})
	},
	Cases: conformance.Foreign,
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.All(t, primitive)
}

func newLingering(k *lockkeeper.Keeper, o lingering.Options) (lingering.Lock, error) {
	l, err := mutex.New(k, "x", &mutex.Options{Linger: o.Linger, TTL: o.TTL, NoRenewal: o.NoRenewal})
	return lingering.Lock{Shared: l.Lock, Alone: l.Lock, TryAlone: l.TryLock, Do: l.Do, Adopt: l.Adopt, Kind: mutex.Kind, Turns: true}, err
}

func TestLinger(t *testing.T) { lingering.Test(t, newLingering) }

// TestLingerServesInOrder: the callers of a process have their turns in the order in which they have come, and one that gives up leaves at once.
func TestLingerServesInOrder(t *testing.T) {
	lingering.Run(t, newLingering, func(s *embedded.Server, p, _ *lingering.Process) {
		m := must.Get(mutex.New(p.Keeper, "x", &mutex.Options{Linger: lingering.Linger}))(t)
		inside := p.Enter()
		first := p.Waits()
		cancelled, cancel := context.WithCancelCause(s.Context())
		gaveUp := make(chan error, 1)
		go func() {
			_, err := m.Lock(cancelled)
			gaveUp <- err
		}()
		synctest.Wait()
		last := p.Waits()
		why := errors.New("enough")
		cancel(why)
		err := <-gaveUp
		check.That(t, errors.Is(err, lockkeeper.ErrNotAcquired) && errors.Is(err, why), "a caller that gives up: %v", err)
		n := p.Scripts(func() {
			p.Leave(inside)
			must.That(t, lingering.IsGranted(first) && !lingering.IsGranted(last), "the second caller has passed the first")
			p.Leave(<-first)
			p.Leave(<-last)
		})
		check.That(t, n == 0, "three turns have sent %d scripts", n)
	})
}

// TestLingerHandsOverToNobodyWhoHasGone lets callers give up as they are handed the lease, at different moments: the next caller has it.
func TestLingerHandsOverToNobodyWhoHasGone(t *testing.T) {
	s := lockkeepertest.New(t)
	m := must.Get(mutex.New(s.Keeper(t, nil), "x", &mutex.Options{Linger: time.Second}))(t)
	for i := range 2000 {
		inside := must.Get(m.Lock(t.Context()))(t)
		brief, cancel := context.WithCancel(t.Context())
		waiting := make(chan *lockkeeper.Lease, 1)
		go func() {
			l, _ := m.Lock(brief)
			waiting <- l
		}()
		for range i % 50 {
			runtime.Gosched()
		}
		go cancel()
		must.OK(t, inside.Release(t.Context()))
		must.OK(t, (<-waiting).Release(t.Context()))
		cancel()
	}
	must.OK(t, must.Get(m.TryLock(t.Context()))(t).Release(t.Context()))
}

// TestExhaustedPool blocks every connection of the application's pools of a Cluster, on eight processors. No call may fail or be slow, no
// lease may be lost, and no call may use those pools. With one server, f38_exhausted_client_pool and TestPipelinePoolBoundsBatches
// do the same.
func TestExhaustedPool(t *testing.T) {
	procs := runtime.GOMAXPROCS(8)
	t.Cleanup(func() { runtime.GOMAXPROCS(procs) })
	const pipelines = 3
	addrs := redistest.StartCluster(t, 3, 0).Addrs()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, PoolSize: 4, PipelinePoolSize: pipelines})
	t.Cleanup(func() { _ = rdb.Close() })
	ctx := must.Within(t, time.Minute)
	k := must.Get(lockkeeper.New(rdb, nil))(t)
	defer func() { _ = k.Close() }()
	lock := func(name string, i int) *mutex.Mutex {
		return must.Get(mutex.New(k, fmt.Sprint(name, i), &mutex.Options{TTL: 2 * time.Second}))(t)
	}

	before := map[*redis.Client]redis.PoolStats{}
	var mu sync.Mutex
	var used []*redis.Conn // taken until it is closed, as by a blocking command
	must.OK(t, rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		for range node.Options().PoolSize {
			conn := node.Conn()
			used = append(used, conn)
			if err := conn.Ping(ctx).Err(); err != nil {
				return err
			}
		}
		before[node] = *node.PoolStats()
		return nil
	}))
	defer func() {
		for _, conn := range used {
			_ = conn.Close()
		}
	}()
	var leases []*lockkeeper.Lease
	for i := range 300 {
		leases = append(leases, must.Get(lock("held", i).Lock(ctx))(t))
	}
	var workers sync.WaitGroup
	end := time.Now().Add(time.Second) // during which every lease is renewed
	for i := range 40 {
		m := lock("taken", i)
		workers.Go(func() {
			for own := ctx; time.Now().Before(end); {
				start := time.Now()
				lease, err := m.Lock(own)
				if err == nil {
					err = lease.Release(own)
				}
				// The machine may be busy; go-redis waits 6 s for a connection of its pool.
				if d := time.Since(start); err != nil || d > 4*time.Second {
					t.Errorf("a call took %v: %v", d, err)
					return
				}
				if i%2 == 0 {
					own = context.Background() // then a call may be sent inline, in the caller's goroutine
				}
			}
		})
	}
	workers.Wait()
	must.Get(must.Get(fair.New(k, "watched", nil))(t).Waiters(ctx))(t)
	for _, lease := range leases {
		must.Report(t, lease.Release(ctx))
	}
	for node, was := range before {
		now := node.PoolStats()
		if n := now.Hits + now.Misses + now.WaitCount - was.Hits - was.Misses - was.WaitCount; n != 0 || now.Timeouts != 0 {
			t.Errorf("the application's pool was asked for a connection %d times, %d without success", n, now.Timeouts)
		}
		if n := now.PipelineStats.TotalConns; n > pipelines {
			t.Errorf("%d connections for pipelines, of %d", n, pipelines)
		}
	}
}
