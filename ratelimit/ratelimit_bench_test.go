package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

func BenchmarkPer(b *testing.B) {
	benchmarks.Per(b, lua.RateLimit, 100, 10000, 100000)
	b.Run("swept=100000", func(b *testing.B) { benchmarks.Sweep(b, lua.RateLimit, 100000) })
}

func BenchmarkFlow(b *testing.B) {
	benchmarks.Flow(b, func(k *lockkeeper.Keeper, limit int, window time.Duration) (func(ctx context.Context) error, error) {
		l, err := ratelimit.New(k, "x", limit, window, nil)
		return l.Wait, err
	})
}
