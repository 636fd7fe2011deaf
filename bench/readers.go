package main

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
)

// writes takes a lock every 100 ms for 1 ms until a time, and returns how long each of them waited, in milliseconds.
func writes(writer lock, until time.Time) (waits []float64, err error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ; time.Now().Before(until); <-tick.C {
		start := time.Now()
		release, err := writer(ctx)
		if err != nil {
			return nil, err
		}
		waits = append(waits, float64(time.Since(start))/1e6)
		time.Sleep(time.Millisecond)
		if err := release(); err != nil {
			return nil, err
		}
	}
	return waits, nil
}

// readers is 64 readers that overlap without a pause, each for 1 to 9 ms, and a writer that comes every 100 ms and writes
// for 1 ms.
//
//	reads/s       reads that began
//	ms/wait       the writer's median wait
//	ms/wait-max   its longest wait
func readers(b *bench) {
	const of, count = "readers", 64
	sides := slices.DeleteFunc(slices.Clone(readWrites), func(l readWrite) bool { return l.etcd && b.at.etcd == "" })
	n, span := pick(b, 5, 1), pick(b, 3*time.Second, 500*time.Millisecond)
	rounds(n, len(sides), func(i int) {
		b.turn(of, sides[i].name, func(s *stage) {
			name := b.name()
			var failed atomic.Pointer[error]
			var stop atomic.Bool
			var reads atomic.Int64
			var wg sync.WaitGroup
			var locks []lock
			for range count {
				read, _ := sides[i].openRW(s, b.at)
				locks = append(locks, read(name))
			}
			_, write := sides[i].openRW(s, b.at)
			writer := write(name)
			for i, l := range locks {
				wg.Go(func() {
					for n := i; !stop.Load(); n++ {
						release, err := l(ctx)
						if err == nil {
							reads.Add(1)
							time.Sleep(time.Duration(1+n%9) * time.Millisecond)
							err = release()
						}
						if err != nil {
							failed.Store(&err)
							return
						}
					}
				})
			}
			time.Sleep(200 * time.Millisecond)
			began, from := time.Now(), reads.Load()
			waits, err := writes(writer, began.Add(span))
			perSecond := float64(reads.Load()-from) / time.Since(began).Seconds()
			stop.Store(true)
			wg.Wait()
			s.must(err)
			if err := failed.Load(); err != nil {
				s.Fatal(*err)
			}
			b.results.add(of, sides[i].name, "reads/s", "1/s", perSecond)
			b.results.add(of, sides[i].name, "ms/wait", "ms", benchmarks.Median(waits))
			b.results.add(of, sides[i].name, "ms/wait-max", "ms", slices.Max(waits))
		})
	})
}
