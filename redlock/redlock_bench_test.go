package redlock_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/redlock"
)

// One server: the overhead over a mutex. Several servers are measured in bench/redlock.

func locker(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
	return redlock.New([]*lockkeeper.Keeper{k}, name, nil)
}

func BenchmarkUncontended(b *testing.B) { benchmarks.Uncontended(b, locker) }

func BenchmarkUncontendedParallel(b *testing.B) { benchmarks.UncontendedParallel(b, locker) }

func BenchmarkContended(b *testing.B) { benchmarks.Contended(b, locker, 8, 64) }

func BenchmarkRenewal(b *testing.B) {
	benchmarks.Renewal(b, func(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
		return redlock.New([]*lockkeeper.Keeper{k}, name, &redlock.Options{TTL: 3 * time.Second})
	}, 100, 10000)
}
