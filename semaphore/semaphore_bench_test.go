package semaphore_test

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// acquiring is n permits of a semaphore of 1,000.
func acquiring(n int) benchmarks.New {
	return func(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
		s, err := semaphore.New(k, name, 1000, nil)
		return benchmarks.Func(func(ctx context.Context) (*lockkeeper.Lease, error) { return s.AcquireN(ctx, n) }), err
	}
}

func BenchmarkHandoff(b *testing.B) { benchmarks.Handoff(b, acquiring(1000), 1, 64, 1000) }

func BenchmarkContended(b *testing.B) { benchmarks.Contended(b, acquiring(1000), 8, 64) }

func BenchmarkAdmit(b *testing.B) { benchmarks.Admit(b, 1000, acquiring(1000), acquiring(1)) }

// sharing returns an acquisition of a permit, and its release, of a semaphore whose leases callers of the process pass on.
func sharing(b *testing.B) (x *benchmarks.Inside, pair func()) {
	x = benchmarks.NewInside(b)
	return x, x.Pair(must.Get(semaphore.New(x.Keeper, "x", 16, &semaphore.Options{Linger: 20 * time.Millisecond}))(b).Acquire)
}

// BenchmarkLinger is a permit that is granted inside the process, by one goroutine.
func BenchmarkLinger(b *testing.B) {
	x, pair := sharing(b)
	x.ByOne(pair)
}

// BenchmarkLingerParallel is the same by as many goroutines as there are processors.
func BenchmarkLingerParallel(b *testing.B) {
	x, pair := sharing(b)
	x.ByMany(1, pair)
}

// BenchmarkLingerContended is the same by 32 goroutines for each processor, more than there are permits.
func BenchmarkLingerContended(b *testing.B) {
	x, pair := sharing(b)
	x.ByMany(32, pair)
}
