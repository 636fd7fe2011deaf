package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// TestOutageWithImpatientCallers freezes a server while 200 goroutines go on trying, each time with a context of 20 ms. What they no
// longer want must neither pile up in the process nor be run when the server goes on: the first of them must succeed within one
// client timeout, and others after it.
func TestOutageWithImpatientCallers(t *testing.T) {
	outage := time.Second
	if os.Getenv("SOAK") != "" {
		outage = 20 * time.Second
	}
	for _, c := range []struct {
		name string
		call func(m *mutex.Mutex, ctx context.Context) (*lockkeeper.Lease, error)
		same bool // all want one name
	}{
		{name: "TryLock_of_new_names", call: (*mutex.Mutex).TryLock},
		{name: "TryLock_of_one_name", call: (*mutex.Mutex).TryLock, same: true},
		{name: "Lock_of_new_names", call: (*mutex.Mutex).Lock},
	} {
		t.Run(c.name, func(t *testing.T) {
			const timeout = 5 * time.Second // that of go-redis by default
			server := redistest.Start(t)
			rdb := redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: timeout, WriteTimeout: timeout, DialTimeout: timeout})
			defer func() { _ = rdb.Close() }()
			k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{Logger: silent}))(t)
			var frozen atomic.Bool // part of the names
			var successes, number atomic.Int64
			acquired := make(chan time.Time, 1)
			var stop atomic.Bool
			var callers sync.WaitGroup
			for range 200 {
				callers.Go(func() {
					for !stop.Load() {
						ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
						name := "one"
						if !c.same {
							name = fmt.Sprintf("frozen=%t-%d", frozen.Load(), number.Add(1))
						}
						m, _ := mutex.New(k, name, nil) // the name is valid
						lease, err := c.call(m, ctx)
						if err == nil {
							successes.Add(1)
							select {
							case acquired <- time.Now():
							default:
							}
							_ = lease.Release(context.Background())
						} else if c.same { // a TryLock that is refused returns at once
							<-ctx.Done()
						}
						cancel()
						time.Sleep(10 * time.Millisecond) // or the machine would be too busy for contexts of 20 ms
					}
				})
			}
			next := func() time.Time { // of a success
				select {
				case <-acquired:
				default:
				}
				select {
				case at := <-acquired:
					return at
				case <-time.After(3 * timeout):
					return time.Now()
				}
			}
			next()
			usual := successes.Load()
			time.Sleep(time.Second)
			usual = successes.Load() - usual // on this machine, in a second
			heap := heapInUse()
			server.Freeze()
			frozen.Store(true)
			time.Sleep(50 * time.Millisecond) // what was answered before
			lastBefore := successes.Load()
			time.Sleep(outage)
			grown := heapInUse() - heap
			must.That(t, successes.Load() == lastBefore, "%d successes while the server was frozen", successes.Load()-lastBefore)
			frozen.Store(false)
			thawed := time.Now()
			server.Thaw()
			first := next().Sub(thawed)
			reached := func() bool { return successes.Load() >= lastBefore+max(5, min(100, usual/5)) }
			for end := time.Now().Add(2 * timeout); !reached() && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			check.That(t, first <= timeout, "the first success came %v after the thaw", first)
			check.That(t, reached(), "%d successes %v after the thaw", successes.Load()-lastBefore, time.Since(thawed))
			check.That(t, grown <= 20e6, "the heap has grown by %d MB", grown/1e6)
			stop.Store(true)
			callers.Wait()
			must.Report(t, k.Close())
			forNobody := must.Get(server.Client().Keys(t.Context(), "*frozen=true-*:meta").Result())(t)
			check.That(t, len(forNobody) < 1000, "the server ran %d calls for nobody", len(forNobody))
		})
	}
}

// heapInUse returns how many bytes are reachable.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestPowerLossForgetsLastWrites cuts the append-only file of a killed server back to a former length, as a power failure does to the
// writes that everysec has not made durable. A grant that is forgotten can be given again, with a larger fence; a release that is
// forgotten leaves the lock taken until its ttl has passed.
func TestPowerLossForgetsLastWrites(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "everysec")
	keepers := []*lockkeeper.Keeper{newKeeper(t, redistest.Connect(s)), newKeeper(t, redistest.Connect(s))}
	lock := func(k *lockkeeper.Keeper, name string, o mutex.Options) (*lockkeeper.Lease, error) {
		t.Helper()
		m := must.Get(mutex.New(k, name, &o))(t)
		return m.TryLock(t.Context())
	}
	held := func(name string, o mutex.Options) *lockkeeper.Lease {
		t.Helper()
		return must.Get(lock(keepers[0], name, o))(t)
	}
	kept := held("kept", mutex.Options{TTL: time.Minute})
	released := held("released", mutex.Options{TTL: time.Minute, NoRenewal: true})
	files, err := filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*.incr.aof"))
	must.That(t, err == nil && len(files) == 1, "%q, %v", files, err)
	size := func() int64 { // all that was answered has been written by then
		info := must.Get(os.Stat(files[0]))(t)
		return info.Size()
	}
	durable := size()
	lost := held("lost", mutex.Options{TTL: ttl})
	must.OK(t, released.Release(t.Context()))
	must.That(t, size() != durable, "nothing was written")
	s.Kill()
	must.OK(t, os.Truncate(files[0], durable))
	s.Restart()

	second, err := lock(keepers[1], "lost", mutex.Options{TTL: ttl})
	if err != nil {
		t.Fatal("the grant was not forgotten:", err)
	}
	check.That(t, second.Fence() > lost.Fence(), "fence %d after %d", second.Fence(), lost.Fence())
	select {
	case <-lost.Done():
	case <-time.After(ttl):
	}
	check.Is(t, lost.Err(), lockkeeper.ErrLost, "the first holder")
	check.Is(t, second.Err(), nil, "the second holder")
	check.Is(t, check.ErrorOf(lock(keepers[1], "released", mutex.Options{})), lockkeeper.ErrNotAcquired, "the release was not forgotten")
	check.Is(t, kept.Extend(t.Context(), time.Minute), nil, "a lease of before")
}
