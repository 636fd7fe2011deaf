package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

func BenchmarkPer(b *testing.B) { benchmarks.Per(b, lua.RateLimit, 100, 10000, 100000) }

// inside calls bench for decisions inside a process that takes permits ahead: open, with a limit that is not reached, and closed.
func inside(b *testing.B, bench func(x *benchmarks.Inside, decide func())) {
	for name, limit := range map[string]int{"open": 1_000_000_000, "closed": 1000} {
		b.Run(name, func(b *testing.B) {
			x := benchmarks.NewInside(b)
			l := must.Get(ratelimit.New(x.Keeper, "x", limit, time.Second, &ratelimit.Options{Ahead: true}))(b)
			decide := func() {
				_, err := l.Allow(context.Background())
				must.Report(b, err)
			}
			for range 1000 {
				decide()
			}
			bench(x, decide)
		})
	}
}

// BenchmarkAhead is by one goroutine.
func BenchmarkAhead(b *testing.B) {
	inside(b, func(x *benchmarks.Inside, decide func()) { x.ByOne(decide) })
}

// BenchmarkAheadParallel is the same by as many goroutines as there are processors.
func BenchmarkAheadParallel(b *testing.B) {
	inside(b, func(x *benchmarks.Inside, decide func()) { x.ByMany(1, decide) })
}
