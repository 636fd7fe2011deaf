package mutex_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/mutex"
)

func locker(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
	return mutex.New(k, name, nil)
}

func BenchmarkAcknowledged(b *testing.B) { benchmarks.Acknowledged(b, locker) }

func BenchmarkHandoff(b *testing.B) { benchmarks.Handoff(b, locker, 1, 64) }

func BenchmarkContended(b *testing.B) { benchmarks.Contended(b, locker, 8, 64) }

// retainedTurn returns a turn of a mutex whose lease the process retains.
func retainedTurn(b *testing.B) (x *benchmarks.Inside, turn func()) {
	x = benchmarks.NewInside(b)
	return x, x.Pair(must.Get(mutex.New(x.Keeper, "x", &mutex.Options{Retain: true}))(b).Lock)
}

// BenchmarkRetained is a turn that is granted inside the process, by one goroutine.
func BenchmarkRetained(b *testing.B) {
	x, turn := retainedTurn(b)
	x.ByOne(turn)
}

// BenchmarkRetainedContended is the same with 8 goroutines for each processor that take turns.
func BenchmarkRetainedContended(b *testing.B) {
	x, turn := retainedTurn(b)
	x.ByMany(8, turn)
}
