package semaphore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// acquiring is n permits of a semaphore of 1,000.
func acquiring(n int) benchmarks.New {
	return func(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
		s, err := semaphore.New(k, name, 1000, nil)
		return benchmarks.Func(func(ctx context.Context) (*lockkeeper.Lease, error) { return s.Acquire(ctx, n) }), err
	}
}

func BenchmarkUncontended(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) { benchmarks.Uncontended(b, acquiring(n)) })
	}
}

func BenchmarkHandoff(b *testing.B) { benchmarks.Handoff(b, acquiring(1000), 1, 64, 1000) }

func BenchmarkContended(b *testing.B) { benchmarks.Contended(b, acquiring(1000), 8, 64) }

func BenchmarkAdmit(b *testing.B) { benchmarks.Admit(b, 1000, acquiring(1000), acquiring(1)) }

func BenchmarkPer(b *testing.B) {
	benchmarks.Per(b, lua.Semaphore, 100, 10000, 100000)
	b.Run("swept=100000", func(b *testing.B) { benchmarks.Sweep(b, lua.Semaphore, 100000) })
}

func BenchmarkFlow(b *testing.B) {
	benchmarks.Flow(b, func(k *lockkeeper.Keeper, limit int, per time.Duration) (benchmarks.Locker, error) {
		s, err := semaphore.New(k, "x", limit, &semaphore.Options{Per: per})
		return benchmarks.Func(func(ctx context.Context) (*lockkeeper.Lease, error) { return s.Acquire(ctx, 1) }), err
	})
}
