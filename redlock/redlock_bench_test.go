package redlock_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/measure"
	"github.com/lockkeeper/lockkeeper/redlock"
)

// One server: what the majority costs over a mutex. Several servers are measured in bench/redlock.

func locker(k *lockkeeper.Keeper, name string) (measure.Locker, error) {
	return redlock.New([]*lockkeeper.Keeper{k}, name, nil)
}

func BenchmarkUncontended(b *testing.B) { measure.Uncontended(b, locker) }

func BenchmarkUncontendedParallel(b *testing.B) { measure.UncontendedParallel(b, locker) }

func BenchmarkContended(b *testing.B) { measure.Contended(b, locker, 8, 64) }

func BenchmarkRenewal(b *testing.B) {
	measure.Renewal(b, func(k *lockkeeper.Keeper, name string) (measure.Locker, error) {
		return redlock.New([]*lockkeeper.Keeper{k}, name, &redlock.Options{TTL: 3 * time.Second})
	}, 100, 10000)
}
