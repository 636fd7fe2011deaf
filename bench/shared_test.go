package main

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
)

// BenchmarkSharedKey lets three keepers and one client of redsync contend for one key for three seconds, each holding it for 5 ms. It
// prints how many turns a second each side has, without mutex.Options.Yield and with it.
func BenchmarkSharedKey(b *testing.B) {
	for name, o := range map[string]*mutex.Options{"no_yield": nil, "yield": {Yield: 250 * time.Millisecond}} {
		b.Run(name, func(b *testing.B) {
			s := redistest.Start(b)
			var ours, theirs atomic.Int64
			for range b.N {
				ctx, cancel := context.WithTimeout(b.Context(), 3*time.Second)
				var all sync.WaitGroup
				turns := func(n *atomic.Int64, acquire lock) {
					all.Go(func() {
						for ctx.Err() == nil {
							release, err := acquire(ctx)
							if err != nil {
								continue
							}
							n.Add(1)
							time.Sleep(5 * time.Millisecond)
							if err := release(); err != nil {
								b.Error(err)
							}
						}
					})
				}
				for range 3 {
					k, err := lockkeeper.New(s.Client(), &lockkeeper.Options{NoPrefix: true, HeartbeatInterval: 100 * time.Millisecond})
					if err != nil {
						b.Fatal(err)
					}
					defer k.Close()
					m, err := mutex.New(k, "shared", o)
					if err != nil {
						b.Fatal(err)
					}
					turns(&ours, func(ctx context.Context) (release, error) {
						lease, err := m.Lock(ctx)
						return func() error { return lease.Release(context.Background()) }, err
					})
				}
				turns(&theirs, redsyncLock(s.Client(), "shared", redsync.WithTries(1<<30))) // its delay is 50 to 250 ms
				all.Wait()
				cancel()
			}
			b.ReportMetric(float64(ours.Load())/3/float64(b.N), "ours/s")
			b.ReportMetric(float64(theirs.Load())/3/float64(b.N), "theirs/s")
		})
	}
}
