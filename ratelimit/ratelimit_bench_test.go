package ratelimit_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/lua"
)

func BenchmarkPer(b *testing.B) { benchmarks.Per(b, lua.RateLimit, 100, 10000, 100000) }
