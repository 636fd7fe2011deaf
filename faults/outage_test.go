package faults

import (
	"context"
	"fmt"
	"os"
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
			acquire := func(ctx context.Context, name string) (*lockkeeper.Lease, error) {
				m, err := mutex.New(k, name, nil)
				if err != nil {
					return nil, err
				}
				return c.call(m, ctx)
			}
			var phase atomic.Pointer[string] // part of the names
			setPhase := func(s string) { phase.Store(&s) }
			setPhase("before")
			var successes, number atomic.Int64
			acquired := make(chan time.Time, 1)
			stop := make(chan struct{})
			var callers sync.WaitGroup
			for range 200 {
				callers.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
						name := "one"
						if !c.same {
							name = fmt.Sprintf("%s-%d", *phase.Load(), number.Add(1))
						}
						lease, err := acquire(ctx, name)
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
			setPhase("frozen")
			time.Sleep(50 * time.Millisecond) // what was answered before
			lastBefore := successes.Load()
			time.Sleep(outage)
			grown := heapInUse() - heap
			must.That(t, successes.Load() == lastBefore, "%d successes while the server was frozen", successes.Load()-lastBefore)
			admin := server.Client()
			setPhase("after")
			thawed := time.Now()
			server.Thaw()
			first := next().Sub(thawed)
			reached := func() bool { return successes.Load() >= lastBefore+max(5, min(100, usual/5)) }
			for end := time.Now().Add(2 * timeout); !reached() && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			lasts := reached()
			after := time.Since(thawed)
			close(stop)
			callers.Wait()
			closing := time.Now()
			must.Report(t, k.Close())
			closed := time.Since(closing)
			forNobody := count(t, admin, "*frozen-*:meta")
			t.Logf("%d successes in a second before; the first %v after the thaw, %d within %v; heap %+.1f MB; %d calls for nobody; closed in %v",
				usual, first.Round(time.Millisecond), successes.Load()-lastBefore, after.Round(time.Millisecond), float64(grown)/1e6, forNobody, closed.Round(time.Millisecond))
			check.That(t, first <= timeout, "the first success came %v after the thaw", first)
			check.That(t, lasts, "%d successes %v after the first", successes.Load()-lastBefore, after-first)
			check.That(t, grown <= 20e6, "the heap has grown by %d MB", grown/1e6)
			check.That(t, forNobody < 1000, "the server ran %d calls for nobody", forNobody)
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

// count returns how many keys match a pattern.
func count(t *testing.T, rdb *redis.Client, pattern string) int {
	t.Helper()
	n := 0
	keys := rdb.Scan(context.Background(), 0, pattern, 10000).Iterator()
	for keys.Next(context.Background()) {
		n++
	}
	must.Report(t, keys.Err())
	return n
}
