package semaphore_test

import (
	"context"
	"errors"
	"testing"

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

// inside calls bench for what is decided inside a process that retains 16 permits: open, an acquisition and its release; and closed, the
// refusal of a try while all permits are in use.
func inside(b *testing.B, bench func(x *benchmarks.Inside, does func())) {
	for _, name := range []string{"open", "closed"} {
		b.Run(name, func(b *testing.B) {
			ctx := context.Background()
			x := benchmarks.NewInside(b)
			s := must.Get(semaphore.New(x.Keeper, "x", 16, &semaphore.Options{Retain: true}))(b)
			does := x.Pair(s.Acquire)
			var all []*lockkeeper.Lease
			for range 16 {
				all = append(all, must.Get(s.Acquire(ctx))(b))
			}
			if name == "closed" {
				does = func() {
					if _, err := s.TryAcquire(ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
						b.Error(err)
					}
				}
			} else {
				for _, l := range all {
					must.OK(b, l.Release(ctx))
				}
			}
			bench(x, does)
		})
	}
}

// BenchmarkRetained is by one goroutine.
func BenchmarkRetained(b *testing.B) {
	inside(b, func(x *benchmarks.Inside, does func()) { x.ByOne(does) })
}

// BenchmarkRetainedParallel is the same by as many goroutines as there are processors.
func BenchmarkRetainedParallel(b *testing.B) {
	inside(b, func(x *benchmarks.Inside, does func()) { x.ByMany(1, does) })
}

// BenchmarkRetainedContended is an acquisition and its release by 32 goroutines for each processor that share 16 permits and wait inside.
func BenchmarkRetainedContended(b *testing.B) {
	x := benchmarks.NewInside(b)
	x.ByMany(32, x.Pair(must.Get(semaphore.New(x.Keeper, "x", 16, &semaphore.Options{Retain: true}))(b).Acquire))
}
