package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

func BenchmarkPer(b *testing.B) { benchmarks.Per(b, lua.RateLimit, 100, 10000, 100000) }

// BenchmarkAhead measures decisions inside a process that takes permits ahead, by one goroutine.
func BenchmarkAhead(b *testing.B) { benchmarkAhead(b, false) }

// BenchmarkAheadParallel is the same by as many goroutines as there are processors.
func BenchmarkAheadParallel(b *testing.B) { benchmarkAhead(b, true) }

func benchmarkAhead(b *testing.B, parallel bool) {
	for name, limit := range map[string]int{"open": 1_000_000_000, "closed": 1000} { // open: the limit is not reached
		b.Run(name, func(b *testing.B) {
			server := redistest.Start(b)
			k := must.Get(lockkeeper.New(redistest.Connect(server), nil))(b)
			defer k.Close()
			l := must.Get(ratelimit.New(k, "x", limit, time.Second, &ratelimit.Options{Ahead: true}))(b)
			decide := func(n int) {
				for range n {
					_, err := l.Allow(context.Background())
					must.Report(b, err)
				}
			}
			decide(1000)
			calls := server.ScriptCalls(b)
			before := calls()
			b.ReportAllocs()
			b.ResetTimer()
			if parallel {
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						decide(1)
					}
				})
			} else {
				decide(b.N)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
			b.ReportMetric((calls()-before)/float64(b.N), "calls/op")
		})
	}
}
