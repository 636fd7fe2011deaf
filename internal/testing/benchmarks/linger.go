package benchmarks

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// Loop is the work of some goroutines of one process.
type Loop struct {
	Acquire Acquire
	Callers int
	Pause   time.Duration // after each release; 0: none
}

// Acquire is a method of a lock.
type Acquire func(context.Context) (*lockkeeper.Lease, error)

// Did is what a Loop has done.
type Did struct {
	Turns   atomic.Int64
	Longest atomic.Int64 // wait, in ns
}

// Keepers returns keepers of processes that use one server.
func Keepers(b *testing.B, n int) (list []*lockkeeper.Keeper) {
	b.Helper()
	server := redistest.Start(b)
	for range n {
		k := must.Get(lockkeeper.New(server.Client(), nil))(b)
		b.Cleanup(func() { _ = k.Close() })
		list = append(list, k)
	}
	return list
}

// Together runs loops beside each other for that long, and returns what each has done.
func Together(b *testing.B, d time.Duration, loops ...Loop) (list []*Did) {
	b.Helper()
	end := time.Now().Add(d)
	var all sync.WaitGroup
	for _, x := range loops {
		did := &Did{}
		list = append(list, did)
		for range x.Callers {
			all.Go(func() {
				for {
					began := time.Now()
					if !began.Before(end) {
						return
					}
					lease, err := x.Acquire(ctx)
					wait := int64(time.Since(began))
					if err == nil {
						err = lease.Release(ctx)
					}
					must.Report(b, err)
					did.Turns.Add(1)
					for longest := did.Longest.Load(); wait > longest && !did.Longest.CompareAndSwap(longest, wait); longest = did.Longest.Load() {
					}
					time.Sleep(x.Pause)
				}
			})
		}
	}
	all.Wait()
	return list
}
