package fair_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/lua"
)

func locker(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
	return fair.New(k, name, nil)
}

func BenchmarkUncontended(b *testing.B) { benchmarks.Uncontended(b, locker) }

func BenchmarkUncontendedParallel(b *testing.B) { benchmarks.UncontendedParallel(b, locker) }

func BenchmarkHandoff(b *testing.B) { benchmarks.Handoff(b, locker, 1, 64, 1000) }

func BenchmarkScale(b *testing.B) { benchmarks.Scale(b, locker, lua.Fair, 10, 1000, 100000) }

func BenchmarkContended(b *testing.B) { benchmarks.Contended(b, locker, 8, 64, 1000) }

func BenchmarkIdle(b *testing.B) { benchmarks.Idle(b, locker, 1000) }

func BenchmarkFairness(b *testing.B) { benchmarks.Fairness(b, locker) }

func BenchmarkRenewal(b *testing.B) {
	benchmarks.Renewal(b, func(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
		return fair.New(k, name, &fair.Options{TTL: 3 * time.Second})
	}, 100, 10000)
}
