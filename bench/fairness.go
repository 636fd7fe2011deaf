package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
)

// fairness is 64 contenders for one name, who hold it for 10 ms and come again at once.
//
//	turns-min, -max  the fewest and the most turns that a contender got
//	longest-wait-x   the longest wait over contenders × the time that a turn takes, which is what a perfect queue needs;
//	                 who still waits at the end counts with the wait so far
//	ms/longest-wait  the longest wait
//	cmds/turn        client commands per turn, as the server counts them
//	errors           waits that ended with an error
func fairness(b *bench) {
	const of, contenders, hold = "fairness", 64, 10 * time.Millisecond
	sides := b.present(libraries)
	n, span := pick(b, 3, 1), pick(b, 4*time.Second, 800*time.Millisecond)
	rounds(n, len(sides), func(i int) {
		l := sides[i]
		b.turn(of, l.name, func(s *stage) {
			name := b.name()
			locks := make([]lock, contenders)
			for i := range locks {
				locks[i] = l.open(s, b.at, ttl).lock(name)
			}
			inner, cancel := context.WithCancel(ctx)
			defer cancel()
			var mu sync.Mutex // guards all of these
			turns, asked := make([]int, contenders), make([]time.Time, contenders)
			var longest time.Duration
			total, errors := 0, 0
			counts := false
			var wg sync.WaitGroup
			for i, l := range locks {
				wg.Go(func() {
					for {
						mu.Lock()
						if asked[i].IsZero() { // else it has asked before, and got an error
							asked[i] = time.Now()
						}
						mu.Unlock()
						release, err := l(inner)
						mu.Lock()
						if inner.Err() != nil {
							mu.Unlock()
							if err == nil {
								_ = release()
							}
							return
						}
						if err != nil && counts {
							errors++
						}
						if err == nil && counts {
							turns[i]++
							total++
							longest = max(longest, time.Since(asked[i]))
						}
						if err == nil {
							asked[i] = time.Time{}
						}
						mu.Unlock()
						if err != nil {
							time.Sleep(hold) // so that errors do not come by the thousand
							continue
						}
						time.Sleep(hold)
						if err := release(); err != nil && inner.Err() == nil {
							mu.Lock()
							errors++
							mu.Unlock()
						}
					}
				})
			}
			time.Sleep(contenders * hold) // until all wait
			before, err := benchmarks.Stats(ctx, b.rdb)
			s.must(err)
			mu.Lock()
			counts = true
			mu.Unlock()
			began := time.Now()
			time.Sleep(span)
			mu.Lock()
			counts = false
			took := time.Since(began)
			for _, t := range asked {
				if !t.IsZero() {
					longest = max(longest, time.Since(t))
				}
			}
			mu.Unlock()
			after, err := benchmarks.Stats(ctx, b.rdb)
			s.must(err)
			cancel()
			wg.Wait()
			if total == 0 {
				s.Fatal("nobody got a turn")
			}
			b.results.add(of, l.name, "longest-wait-x", "1", float64(longest)/(contenders*float64(took)/float64(total)))
			b.results.add(of, l.name, "turns-min", "1", float64(slices.Min(turns)))
			b.results.add(of, l.name, "turns-max", "1", float64(slices.Max(turns)))
			b.results.add(of, l.name, "ms/longest-wait", "ms", float64(longest)/1e6)
			if !l.etcd {
				commands := l.count(after).Calls - l.count(before).Calls
				b.results.add(of, l.name, "cmds/turn", "1", float64(commands)/float64(total))
			}
			b.results.add(of, l.name, "errors", "1", float64(errors))
		})
	})
}
