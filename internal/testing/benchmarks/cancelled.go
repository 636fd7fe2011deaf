package benchmarks

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// Cancelled is so many waits for one name in one keeper that are cancelled at once, while a goroutine locks and releases another name of
// the same keeper, again and again.
//
//	ms/longest  the longest time that this took for one Lock and Release until the server had nothing of the waits left
//	x-usual     the same, over the median before they were cancelled
//	ms/returned until all waits had returned
//	ms/left     until the server had nothing of them left
func Cancelled(b *testing.B, n New, waits ...int) {
	for _, w := range waits {
		b.Run(fmt.Sprintf("waits=%d", w), func(b *testing.B) { cancelled(b, n, w) })
	}
}

func cancelled(b *testing.B, n New, waits int) {
	m := start(b, n)
	var longest, ratios, returned, left []float64
	for range b.N {
		lease := must.Get(m.lock(m.keeper(lockkeeper.Options{}), "x").Lock(ctx))(m)
		inLine := make(chan struct{}, waits)
		k := m.keeper(lockkeeper.Options{Hooks: lockkeeper.Hooks{Queued: func(lockkeeper.Event) {
			select {
			case inLine <- struct{}{}:
			default: // the position of one has changed
			}
		}}})
		waited, other := m.lock(k, "x"), m.lock(k, "y")
		waiting, cancel := context.WithCancel(ctx)
		var all sync.WaitGroup
		for range waits {
			all.Go(func() { _, _ = waited.Lock(waiting) })
		}
		for range waits {
			<-inLine
		}
		var usual []float64
		for range 100 {
			usual = append(usual, m.timed(other))
		}
		began := time.Now()
		cancel()
		since := func() float64 { return time.Since(began).Seconds() * 1000 }
		var others sync.WaitGroup
		others.Go(func() {
			all.Wait()
			returned = append(returned, since())
		})
		ended := make(chan struct{})
		others.Go(func() {
			defer close(ended)
			for n := 1; n > 0; time.Sleep(time.Millisecond) {
				n = len(must.Get(m.rdb.Keys(ctx, "*:queue").Result())(m))
			}
			left = append(left, since())
		})
		var disturbed []float64
		for stop := false; !stop; {
			disturbed = append(disturbed, m.timed(other))
			select {
			case <-ended:
				stop = true
			default:
			}
		}
		others.Wait()
		longest = append(longest, slices.Max(disturbed))
		ratios = append(ratios, slices.Max(disturbed)/Median(usual))
		m.must(lease.Release(ctx))
	}
	b.ReportMetric(Median(longest), "ms/longest")
	b.ReportMetric(Median(ratios), "x-usual")
	b.ReportMetric(Median(returned), "ms/returned")
	b.ReportMetric(Median(left), "ms/left")
	b.ReportMetric(0, "ns/op") // most of it is to queue them
}

// timed returns the ms that a Lock with its Release takes.
func (b *bench) timed(l Locker) float64 {
	began := time.Now()
	b.once(l)
	return time.Since(began).Seconds() * 1000
}
