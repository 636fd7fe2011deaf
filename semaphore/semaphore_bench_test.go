package semaphore_test

import (
	"context"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
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
