package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// retained returns a limiter that takes permits ahead, of which some are asked for already.
func retained(b *testing.B, limit int) *ratelimit.Limiter {
	b.Helper()
	k, err := lockkeeper.New(redistest.Start(b).Client(), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = k.Close() })
	l, err := ratelimit.New(k, "x", limit, time.Second, &ratelimit.Options{Retain: true})
	if err != nil {
		b.Fatal(err)
	}
	for range 1000 {
		allowed(b, l)
	}
	return l
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
			l := retained(b, limit)
			b.ReportAllocs()
			grants := 0
			for b.Loop() {
				if allowed(b, l) {
					grants++
				}
			}
			b.ReportMetric(float64(grants)/float64(b.N), "granted/op")
		})
	}
}

var limits = map[string]int{"open": 1_000_000_000, "closed": 1000}

// BenchmarkRetainedParallel is the same by as many goroutines as there are processors.
func BenchmarkRetainedParallel(b *testing.B) {
	for name, limit := range limits {
		b.Run(name, func(b *testing.B) {
			l := retained(b, limit)
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
