package fair_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
)

func locker(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
	return fair.New(k, name, nil)
}

func BenchmarkHandoff(b *testing.B) { benchmarks.Handoff(b, locker, 1, 64, 1000) }

func BenchmarkContended(b *testing.B) { benchmarks.Contended(b, locker, 8, 64, 1000) }

func BenchmarkIdle(b *testing.B) { benchmarks.Idle(b, locker, 1000) }
