package mutex_test

import (
	"context"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
)

// retainedMutex returns a mutex whose lease the process retains.
func retainedMutex(b *testing.B) *mutex.Mutex {
	b.Helper()
	k := must.Get(lockkeeper.New(redistest.Start(b).Client(), nil))(b)
	b.Cleanup(func() { _ = k.Close() })
	m := must.Get(mutex.New(k, "x", &mutex.Options{Retain: true}))(b)
	for range 1000 {
		lockOnce(b, m)
	}
	return m
}

func lockOnce(b *testing.B, m *mutex.Mutex) {
	lease, err := m.Lock(context.Background())
	if err == nil {
		err = lease.Release(context.Background())
	}
	if err != nil {
		b.Error(err)
	}
}

// BenchmarkRetained is a turn that is granted inside the process, by one goroutine.
func BenchmarkRetained(b *testing.B) {
	m := retainedMutex(b)
	b.ReportAllocs()
	for b.Loop() {
		lockOnce(b, m)
	}
}

// BenchmarkRetainedContended is the same with 16 goroutines that take turns.
func BenchmarkRetainedContended(b *testing.B) {
	m := retainedMutex(b)
	b.ReportAllocs()
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range b.N / 16 {
				lockOnce(b, m)
			}
		})
	}
	all.Wait()
}
