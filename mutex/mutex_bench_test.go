package mutex_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/measure"
	"github.com/lockkeeper/lockkeeper/mutex"
)

func locker(k *lockkeeper.Keeper, name string) (measure.Locker, error) {
	return mutex.New(k, name, nil)
}

func BenchmarkUncontended(b *testing.B) { measure.Uncontended(b, locker) }

func BenchmarkAcknowledged(b *testing.B) { measure.Acknowledged(b, locker) }

func BenchmarkUncontendedParallel(b *testing.B) { measure.UncontendedParallel(b, locker) }

func BenchmarkHandoff(b *testing.B) { measure.Handoff(b, locker, 1, 64) }

func BenchmarkContended(b *testing.B) { measure.Contended(b, locker, 8, 64) }

func BenchmarkRenewal(b *testing.B) {
	measure.Renewal(b, func(k *lockkeeper.Keeper, name string) (measure.Locker, error) {
		return mutex.New(k, name, &mutex.Options{TTL: 3 * time.Second})
	}, 100, 10000)
}
