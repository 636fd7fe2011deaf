package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// endless is our mutex with contexts that never end; the other cases, and the other libraries, have contexts that can.
var endless = library{
	name: "mutex, endless",
	open: func(t redistest.TB, at target, ttl time.Duration) client {
		k := keeper(t, at.rdb(t), lockkeeper.Options{})
		return client{lock: func(name string) lock {
			l, err := mutex.New(k, name, &mutex.Options{TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			return func(context.Context) (release, error) {
				lease, err := l.Lock(context.Background())
				if err != nil {
					return nil, err
				}
				return func() error { return lease.Release(context.Background()) }, nil
			}
		}}
	},
}

// floors are the bare commands that a lock cannot do without, through the same client, in three ways to send them: inline,
// each from a goroutine of its own, and by the client's automatic pipelining.
var floors = []library{
	{name: "bare, inline", open: func(t redistest.TB, at target, _ time.Duration) client {
		return bare(t, at.rdb(t), func(f func() error) error { return f() })
	}},
	{name: "bare, goroutines", open: func(t redistest.TB, at target, _ time.Duration) client {
		return bare(t, at.rdb(t), func(f func() error) error {
			done := make(chan error, 1)
			go func() { done <- f() }()
			return <-done
		})
	}},
	{name: "bare, pipelined", open: func(t redistest.TB, at target, _ time.Duration) client {
		p, err := at.rdb(t).(*redis.Client).AutoPipeline()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		return bare(t, p, func(f func() error) error { return f() })
	}},
}

func bare(t redistest.TB, c redis.Cmdable, send func(func() error) error) client {
	take, give, err := benchmarks.Bare(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return client{lock: func(name string) lock {
		return func(context.Context) (release, error) {
			err := send(func() error { return take(name) })
			return func() error { return send(func() error { return give(name) }) }, err
		}
	}}
}

// uncontended is goroutines on names of their own, through one client.
//
//	ns/op      time per lock with its release, of all goroutines together
//	x-floor    over that of the bare commands inline, of the same round
//	allocs/op  allocations in the process
func uncontended(b *bench) {
	for _, goroutines := range []int{1, 64, 1024} {
		of := fmt.Sprintf("uncontended/goroutines=%d", goroutines)
		sides := append(append(b.present(libraries), endless), floors...)
		n, span := pick(b, 5, 2), pick(b, 300*time.Millisecond, 20*time.Millisecond)
		inline := len(sides) - len(floors)
		times := make([][]float64, len(sides))
		rounds(n, len(sides), func(i int) {
			b.turn(of, sides[i].name, func(s *stage) {
				perOp, allocs := b.apart(s, sides[i], b.at, goroutines, span)
				times[i] = append(times[i], perOp)
				b.results.add(of, sides[i].name, "ns/op", "ns", perOp)
				b.results.add(of, sides[i].name, "allocs/op", "1", allocs)
			})
		})
		for i, l := range sides {
			for round := range min(len(times[i]), len(times[inline])) {
				b.results.add(of, l.name, "x-floor", "1", times[i][round]/times[inline][round])
			}
		}
	}
}

// apart is goroutines on names of their own, through one client, for so long after a quarter of that to warm up. It
// returns the time per operation in nanoseconds and the allocations per operation: the median of a few blocks, so that a
// short disturbance from outside does not count.
func (b *bench) apart(s *stage, l library, at target, goroutines int, span time.Duration) (perOp, allocs float64) {
	blocks := 10
	if goroutines > 1 {
		blocks = 5
	}
	if goroutines > 100 { // each should come round in a block
		blocks = 3
	}
	c := l.open(s, at, ttl)
	locks := make([]lock, goroutines)
	for g := range locks {
		locks[g] = c.lock(b.name())
	}
	_, _, err := together(locks, span/4)
	s.must(err)
	var times, counts []float64
	for range blocks {
		perOp, allocs, err := together(locks, span/time.Duration(blocks))
		s.must(err)
		times, counts = append(times, perOp), append(counts, allocs)
	}
	return benchmarks.Median(times), benchmarks.Median(counts)
}

// together has a goroutine for each lock take it and give it back, again and again for so long, and returns the time per
// operation in nanoseconds and the allocations per operation.
func together(locks []lock, span time.Duration) (perOp, allocs float64, err error) {
	var ops atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	for _, l := range locks {
		wg.Go(func() {
			n := int64(0)
			for first := true; first || time.Since(start) < span; first = false {
				if err := once(l); err != nil {
					failed.Store(&err)
					return
				}
				n++
			}
			ops.Add(n)
		})
	}
	wg.Wait()
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if err := failed.Load(); err != nil {
		return 0, 0, *err
	}
	n := float64(ops.Load())
	return float64(took) / n, float64(after.Mallocs-before.Mallocs) / n, nil
}

// once is a lock with its release.
func once(l lock) error {
	release, err := l(ctx)
	if err != nil {
		return err
	}
	return release()
}
