package main

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
)

// BenchmarkSharedKey lets three keepers and one client of redsync contend for one key for three seconds, each holding it for 5 ms. It
// prints how many turns a second each side has, and how long redsync has waited at most, without mutex.Options.Yield and with it.
// After a turn redsync pauses for 10 ms: otherwise it would have one turn after the other until a keeper asks again, and their number
// would say little of how it gets in.
func BenchmarkSharedKey(b *testing.B) {
	for name, o := range map[string]*mutex.Options{"no_yield": nil, "yield": {Yield: 250 * time.Millisecond}} {
		b.Run(name, func(b *testing.B) {
			s := redistest.Start(b)
			var ours, theirs atomic.Int64
			var longest time.Duration // that redsync has waited
			for range b.N {
				ctx, cancel := context.WithTimeout(b.Context(), 3*time.Second)
				var all sync.WaitGroup
				turns := func(n *atomic.Int64, pause time.Duration, acquire lock) {
					all.Go(func() {
						for ctx.Err() == nil {
							release, err := acquire(ctx)
							if err != nil {
								continue
							}
							n.Add(1)
							time.Sleep(5 * time.Millisecond)
							must.Report(b, release())
							time.Sleep(pause)
						}
					})
				}
				for range 3 {
					k := keeper(b, redistest.Connect(s), lockkeeper.Options{NoPrefix: true, HeartbeatInterval: 100 * time.Millisecond})
					turns(&ours, 0, waiting(must.Get(mutex.New(k, "shared", o))(b)))
				}
				acquire := redsyncLock(redistest.Connect(s), "shared", redsync.WithTries(1<<30)) // its delay is 50 to 250 ms
				turns(&theirs, 10*time.Millisecond, func(ctx context.Context) (release, error) {
					began := time.Now()
					defer func() { longest = max(longest, time.Since(began)) }()
					return acquire(ctx)
				})
				all.Wait()
				cancel()
			}
			b.ReportMetric(float64(ours.Load())/3/float64(b.N), "ours/s")
			b.ReportMetric(float64(theirs.Load())/3/float64(b.N), "theirs/s")
			b.ReportMetric(float64(longest.Milliseconds()), "longest-wait-ms")
		})
	}
}
