package semaphore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// retained returns a semaphore of so many permits, which the process retains, and what counts the calls of its server.
func retained(b *testing.B, limit int) (s *semaphore.Semaphore, calls func() float64) {
	b.Helper()
	server := redistest.Start(b)
	k := must.Get(lockkeeper.New(server.Client(), nil))(b)
	b.Cleanup(func() { _ = k.Close() })
	s = must.Get(semaphore.New(k, "x", limit, &semaphore.Options{Retain: true}))(b)
	acquire(b, s)
	var all []*lockkeeper.Lease
	for range limit {
		all = append(all, must.Get(s.Acquire(context.Background()))(b))
	}
	for _, l := range all {
		_ = l.Release(context.Background())
	}
	return s, server.ScriptCalls(b)
}

func acquire(b *testing.B, s *semaphore.Semaphore) {
	l, err := s.Acquire(context.Background())
	if err == nil {
		err = l.Release(context.Background())
	}
	if err != nil {
		b.Error(err)
	}
}

// refused makes a try while all permits are in use.
func refused(b *testing.B, s *semaphore.Semaphore) {
	if _, err := s.TryAcquire(context.Background()); !errors.Is(err, lockkeeper.ErrNotAcquired) {
		b.Error(err)
	}
}

// inside calls bench for acquiring and releasing one of 16 permits inside the process, and for a refusal.
func inside(b *testing.B, bench func(b *testing.B, does func())) {
	run := func(name string, does func(*testing.B, *semaphore.Semaphore), held int) {
		b.Run(name, func(b *testing.B) {
			s, calls := retained(b, 16)
			for range held {
				must.Get(s.Acquire(context.Background()))(b)
			}
			b.ReportAllocs()
			before := calls()
			bench(b, func() { does(b, s) })
			b.ReportMetric((calls()-before)/float64(b.N), "calls/op")
		})
	}
	run("open", acquire, 0)
	run("closed", refused, 16)
}

// BenchmarkRetained is an acquisition and its release inside the process by one goroutine, or a refusal.
func BenchmarkRetained(b *testing.B) {
	inside(b, func(b *testing.B, does func()) {
		for b.Loop() {
			does()
		}
	})
}

// BenchmarkRetainedParallel is the same by as many goroutines as there are processors.
func BenchmarkRetainedParallel(b *testing.B) {
	inside(b, func(b *testing.B, does func()) {
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				does()
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
	})
}

// BenchmarkRetainedContended is the same by 64 goroutines that share 16 permits and wait inside.
func BenchmarkRetainedContended(b *testing.B) {
	s, _ := retained(b, 16)
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			acquire(b, s)
		}
	})
}
