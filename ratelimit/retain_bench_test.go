package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// retained returns a limiter that takes permits ahead, of which some are asked for already, and what counts the calls of its server.
func retained(b *testing.B, limit int) (l *ratelimit.Limiter, calls func() float64) {
	b.Helper()
	server := redistest.Start(b)
	k := must.Get(lockkeeper.New(server.Client(), nil))(b)
	b.Cleanup(func() { _ = k.Close() })
	l = must.Get(ratelimit.New(k, "x", limit, time.Second, &ratelimit.Options{Retain: true}))(b)
	for range 1000 {
		allowed(b, l)
	}
	return l, server.ScriptCalls(b)
}

func allowed(b *testing.B, l *ratelimit.Limiter) bool {
	r, err := l.Allow(context.Background())
	if err != nil {
		b.Error(err)
	}
	return r.Allowed
}

// BenchmarkRetained is a decision inside the process, by one goroutine: open, with a limit that is not reached, and closed.
func BenchmarkRetained(b *testing.B) {
	for name, limit := range limits {
		b.Run(name, func(b *testing.B) {
			l, calls := retained(b, limit)
			b.ReportAllocs()
			before := calls()
			for b.Loop() {
				allowed(b, l)
			}
			b.ReportMetric((calls()-before)/float64(b.N), "calls/op")
		})
	}
}

var limits = map[string]int{"open": 1_000_000_000, "closed": 1000}

// BenchmarkRetainedParallel is the same by as many goroutines as there are processors.
func BenchmarkRetainedParallel(b *testing.B) {
	for name, limit := range limits {
		b.Run(name, func(b *testing.B) {
			l, _ := retained(b, limit)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					allowed(b, l)
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}
