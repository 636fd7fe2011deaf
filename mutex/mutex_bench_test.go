package mutex_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/mutex"
)

func locker(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
	return mutex.New(k, name, nil)
}

func BenchmarkAcknowledged(b *testing.B) { benchmarks.Acknowledged(b, locker) }

func BenchmarkHandoff(b *testing.B) { benchmarks.Handoff(b, locker, 1, 64) }

func BenchmarkContended(b *testing.B) { benchmarks.Contended(b, locker, 8, 64) }
