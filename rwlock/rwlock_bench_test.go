package rwlock_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

func reader(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
	l, err := rwlock.New(k, name, nil)
	return benchmarks.Func(l.RLock), err
}

func writer(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
	return rwlock.New(k, name, nil)
}

func BenchmarkHandoff(b *testing.B) { benchmarks.Handoff(b, writer, 1, 64) }

func BenchmarkContended(b *testing.B) { benchmarks.Contended(b, writer, 8, 64) }

func BenchmarkAdmit(b *testing.B) { benchmarks.Admit(b, 1000, writer, reader) }
