package redlock_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/redlock"
)

// One server: the overhead over a mutex. Several servers are measured in bench.

func locker(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
	return redlock.New([]*lockkeeper.Keeper{k}, name, nil)
}

func BenchmarkContended(b *testing.B) { benchmarks.Contended(b, locker, 8, 64) }
