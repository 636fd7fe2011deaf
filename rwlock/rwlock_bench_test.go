package rwlock_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

func reader(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
	l, err := rwlock.New(k, name, nil)
	return benchmarks.Func(l.RLock), err
}

func writer(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
	return rwlock.New(k, name, nil)
}

func BenchmarkHandoff(b *testing.B) { benchmarks.Handoff(b, writer, 1, 64) }

func BenchmarkContended(b *testing.B) { benchmarks.Contended(b, writer, 8, 64) }

func BenchmarkAdmit(b *testing.B) { benchmarks.Admit(b, 1000, writer, reader) }

// retainedRead returns a read of a lock whose read lease the process retains.
func retainedRead(b *testing.B) (x *benchmarks.Inside, read func()) {
	x = benchmarks.NewInside(b)
	return x, x.Pair(must.Get(rwlock.New(x.Keeper, "x", &rwlock.Options{Retain: true}))(b).RLock)
}

// BenchmarkRetained is a read that is granted inside the process, by one goroutine.
func BenchmarkRetained(b *testing.B) {
	x, read := retainedRead(b)
	x.ByOne(read)
}

// BenchmarkRetainedParallel is the same by as many goroutines as there are processors.
func BenchmarkRetainedParallel(b *testing.B) {
	x, read := retainedRead(b)
	x.ByMany(1, read)
}
