package benchmarks

import (
	"context"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// Inside measures what a process decides by what it has, on a server of its own.
type Inside struct {
	*testing.B
	Keeper *lockkeeper.Keeper
	calls  func() float64 // of the server, which are not expected
}

// NewInside starts a server and a keeper.
func NewInside(b *testing.B) *Inside {
	b.Helper()
	server := redistest.Start(b)
	k := must.Get(lockkeeper.New(server.Client(), nil))(b)
	b.Cleanup(func() { _ = k.Close() })
	return &Inside{b, k, server.ScriptCalls(b)}
}

// Pair returns an acquisition and its release, which were made so often that the process has what they need.
func (x *Inside) Pair(acquire func(context.Context) (*lockkeeper.Lease, error)) func() {
	pair := func() {
		lease, err := acquire(ctx)
		if err == nil {
			err = lease.Release(ctx)
		}
		must.Report(x, err)
	}
	for range 1000 {
		pair()
	}
	return pair
}

// ByOne measures f as one goroutine calls it.
func (x *Inside) ByOne(f func()) {
	x.ReportAllocs()
	before := x.calls()
	for x.Loop() {
		f()
	}
	x.ReportMetric((x.calls()-before)/float64(x.N), "calls/op")
}

// ByMany measures f as so many goroutines for each processor call it, also as decisions per second.
func (x *Inside) ByMany(perProcessor int, f func()) {
	x.ReportAllocs()
	before := x.calls()
	x.SetParallelism(perProcessor)
	x.ResetTimer()
	x.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			f()
		}
	})
	x.ReportMetric(float64(x.N)/x.Elapsed().Seconds(), "decisions/s")
	x.ReportMetric((x.calls()-before)/float64(x.N), "calls/op")
}
