package rwlock_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

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
