package semaphore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/measure"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// acquiring is n permits of a semaphore of 1,000.
func acquiring(n int) measure.New {
	return func(k *lockkeeper.Keeper, name string) (measure.Locker, error) {
		s, err := semaphore.New(k, name, 1000, nil)
		return measure.Func(func(ctx context.Context) (*lockkeeper.Lease, error) { return s.Acquire(ctx, n) }), err
	}
}

func BenchmarkUncontended(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) { measure.Uncontended(b, acquiring(n)) })
	}
}

func BenchmarkHandoff(b *testing.B) { measure.Handoff(b, acquiring(1000), 1, 64, 1000) }

func BenchmarkContended(b *testing.B) { measure.Contended(b, acquiring(1000), 8, 64) }

func BenchmarkAdmit(b *testing.B) { measure.Admit(b, 1000, acquiring(1000), acquiring(1)) }

func BenchmarkPer(b *testing.B) {
	measure.Per(b, lua.Semaphore, 100, 10000, 100000)
	b.Run("swept=100000", func(b *testing.B) { measure.Sweep(b, lua.Semaphore, 100000) })
}

func BenchmarkFlow(b *testing.B) {
	measure.Flow(b, func(k *lockkeeper.Keeper, limit int, per time.Duration) (measure.Locker, error) {
		s, err := semaphore.New(k, "x", limit, &semaphore.Options{Per: per})
		return measure.Func(func(ctx context.Context) (*lockkeeper.Lease, error) { return s.Acquire(ctx, 1) }), err
	})
}
