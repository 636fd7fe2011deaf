package rwlock_test

import (
	"context"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

// retainedLock returns a lock whose read lease the process retains.
func retainedLock(b *testing.B) *rwlock.Lock {
	b.Helper()
	k := must.Get(lockkeeper.New(redistest.Start(b).Client(), nil))(b)
	b.Cleanup(func() { _ = k.Close() })
	l := must.Get(rwlock.New(k, "x", &rwlock.Options{Retain: true}))(b)
	for range 1000 {
		readOnce(b, l)
	}
	return l
}

func readOnce(b *testing.B, l *rwlock.Lock) {
	lease, err := l.RLock(context.Background())
	if err == nil {
		err = lease.Release(context.Background())
	}
	if err != nil {
		b.Error(err)
	}
}

// BenchmarkRetained is a read that is granted inside the process, by one goroutine.
func BenchmarkRetained(b *testing.B) {
	l := retainedLock(b)
	b.ReportAllocs()
	for b.Loop() {
		readOnce(b, l)
	}
}

// BenchmarkRetainedParallel is the same by as many goroutines as there are processors.
func BenchmarkRetainedParallel(b *testing.B) {
	l := retainedLock(b)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			readOnce(b, l)
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reads/s")
}
