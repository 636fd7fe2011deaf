package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// linger is our primitives with Linger against the same without it, in turns.
func linger(b *bench) {
	for _, f := range []func(*bench){lingerInside, lingerReaders, lingerMixed, lingerFrozen, lingerTurns} {
		f(b)
	}
}

// lingerTime is the Linger of the cases that have one.
const lingerTime = 10 * time.Millisecond

// side is a row of a case: a kind, without Linger or with one.
type side struct {
	name   string
	linger time.Duration
}

func sidesOf(kind string, lingers ...time.Duration) (list []side) {
	for _, d := range append([]time.Duration{0}, lingers...) {
		name := kind
		if d > 0 {
			name += ", Linger " + d.String()
		}
		list = append(list, side{name, d})
	}
	return list
}

// lingers is for the columns of a page.
func lingers(library string) bool { return strings.Contains(library, ", Linger ") }

// rw is the read-write lock of a name.
func rw(s *stage, k *lockkeeper.Keeper, name string, linger time.Duration) *rwlock.Lock {
	l, err := rwlock.New(k, name, &rwlock.Options{TTL: ttl, Linger: linger})
	s.must(err)
	return l
}

func reading(l *rwlock.Lock) lock { return waiting(benchmarks.Func(l.RLock)) }

// mutexOf is the mutex of a name, of a process of its own.
func mutexOf(s *stage, at target, name string, linger time.Duration) *mutex.Mutex {
	m, err := mutex.New(keeper(s, at.rdb(s), lockkeeper.Options{}), name, &mutex.Options{TTL: ttl, Linger: linger})
	s.must(err)
	return m
}

// lingerInside is an acquisition with its release, by one goroutine and by as many as there are processors, of our primitives, and of what
// Go has for one process. The read of a pointer is there to say what a read costs without a lock.
//
//	ns/op        by one goroutine
//	allocs/op    the same: allocations in the process
//	cmds/op      the same: scripts that clients sent
//	parallel/s   by all of them together
func lingerInside(b *bench) {
	const of = "linger/inside"
	n, span := pick(b, 5, 1), pick(b, time.Second, 100*time.Millisecond)
	type inside struct {
		side
		open func(s *stage, linger time.Duration) (use func() error)
	}
	ours := func(open func(s *stage, k *lockkeeper.Keeper, linger time.Duration) func(context.Context) (*lockkeeper.Lease, error)) func(*stage, time.Duration) func() error {
		return func(s *stage, linger time.Duration) func() error {
			acquire := open(s, keeper(s, b.at.rdb(s), lockkeeper.Options{}), linger)
			return func() error {
				lease, err := acquire(ctx)
				if err != nil {
					return err
				}
				return lease.Release(ctx)
			}
		}
	}
	list := []inside{
		{side{name: "atomic.Pointer"}, func(*stage, time.Duration) func() error {
			var p atomic.Pointer[string]
			p.Store(new(string))
			return func() error { _ = *p.Load(); return nil }
		}},
		{side{name: "sync.RWMutex, RLock"}, func(*stage, time.Duration) func() error {
			var mu sync.RWMutex
			return func() error { mu.RLock(); defer mu.RUnlock(); return nil }
		}},
		{side{name: "sync.Mutex"}, func(*stage, time.Duration) func() error {
			var mu sync.Mutex
			return func() error { mu.Lock(); defer mu.Unlock(); return nil }
		}},
	}
	for kind, open := range map[string]func(*stage, time.Duration) func() error{
		"lockkeeper rwlock": ours(func(s *stage, k *lockkeeper.Keeper, linger time.Duration) func(context.Context) (*lockkeeper.Lease, error) {
			return rw(s, k, b.name(), linger).RLock
		}),
		"lockkeeper mutex": ours(func(s *stage, k *lockkeeper.Keeper, linger time.Duration) func(context.Context) (*lockkeeper.Lease, error) {
			m, err := mutex.New(k, b.name(), &mutex.Options{TTL: ttl, Linger: linger})
			s.must(err)
			return m.Lock
		}),
		"lockkeeper semaphore": ours(func(s *stage, k *lockkeeper.Keeper, linger time.Duration) func(context.Context) (*lockkeeper.Lease, error) {
			m, err := semaphore.New(k, b.name(), 64, &semaphore.Options{TTL: ttl, Linger: linger})
			s.must(err)
			return m.Acquire
		}),
	} {
		for _, x := range sidesOf(kind, lingerTime) {
			list = append(list, inside{x, open})
		}
	}
	rounds(n, len(list), func(i int) {
		x := list[i]
		b.turn(of, x.name, func(s *stage) {
			use := x.open(s, x.linger)
			_, _, err := repeated(use, 1, span/4)
			s.must(err)
			before, err := benchmarks.Stats(ctx, b.rdb)
			s.must(err)
			count, took, allocs, err := repeatedAllocs(use, span)
			s.must(err)
			after, err := benchmarks.Stats(ctx, b.rdb)
			s.must(err)
			b.results.add(of, x.name, "ns/op", "ns", float64(took)/count)
			b.results.add(of, x.name, "allocs/op", "1", allocs/count)
			b.results.add(of, x.name, "cmds/op", "1", scripts(before, after)/count)
			count, took, err = repeated(use, runtime.GOMAXPROCS(0), span)
			s.must(err)
			b.results.add(of, x.name, "parallel/s", "1/s", count/took.Seconds())
		})
	})
}

// repeated calls use again and again in so many goroutines. It reads the clock after many calls only, since some take a few ns.
func repeated(use func() error, goroutines int, span time.Duration) (count float64, took time.Duration, err error) {
	var ops atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	start := time.Now()
	for range goroutines {
		wg.Go(func() {
			for batch := int64(1); time.Since(start) < span; {
				began := time.Now()
				var err error // of all calls, or each would allocate one
				for i := int64(0); i < batch && err == nil; i++ {
					err = use()
				}
				if err != nil {
					failed.Store(&err)
					return
				}
				ops.Add(batch)
				if time.Since(began) < 100*time.Microsecond {
					batch *= 2
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, 0, *err
	}
	return float64(ops.Load()), time.Since(start), nil
}

// repeatedAllocs is repeated by one goroutine, with the allocations of all calls.
func repeatedAllocs(use func() error, span time.Duration) (count float64, took time.Duration, allocs float64, err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	count, took, err = repeated(use, 1, span)
	runtime.ReadMemStats(&after)
	return count, took, float64(after.Mallocs - before.Mallocs), err
}

// scripts is how many scripts the server has run meanwhile.
func scripts(before, after map[string]benchmarks.Stat) float64 {
	return float64(library{}.count(after).Calls - library{}.count(before).Calls)
}

// lingerReaders is 64 readers of one process, each of whom reads 100 times in a row and pauses for 1 ms, and a writer with a client
// of its own that comes every 100 ms and writes for 1 ms.
//
//	reads/s          reads that ended
//	ms/wait          the writer's median wait
//	ms/wait-max      its longest wait
//	cmds/1000-reads  scripts that clients sent
func lingerReaders(b *bench) {
	const of, count, row = "linger/readers", 64, 100
	n, span := pick(b, 5, 1), pick(b, 3*time.Second, 500*time.Millisecond)
	sides := sidesOf("lockkeeper rwlock", time.Millisecond, 5*time.Millisecond, 20*time.Millisecond, 50*time.Millisecond)
	rounds(n, len(sides), func(i int) {
		x := sides[i]
		b.turn(of, x.name, func(s *stage) {
			name := b.name()
			k := keeper(s, b.at.rdb(s), lockkeeper.Options{})
			var reads [count]struct { // a cache line each
				atomic.Int64
				_ [56]byte
			}
			sum := func() (n int64) {
				for i := range reads {
					n += reads[i].Load()
				}
				return n
			}
			var failed atomic.Pointer[error]
			var stop atomic.Bool
			var wg sync.WaitGroup
			for r := range count {
				l := reading(rw(s, k, name, x.linger))
				wg.Go(func() {
					for !stop.Load() {
						for range row {
							if err := once(l); err != nil {
								failed.Store(&err)
								return
							}
							reads[r].Add(1)
						}
						time.Sleep(time.Millisecond)
					}
				})
			}
			writer := waiting(rw(s, keeper(s, b.at.rdb(s), lockkeeper.Options{}), name, 0))
			time.Sleep(200 * time.Millisecond)
			before, err := benchmarks.Stats(ctx, b.rdb)
			s.must(err)
			began, from := time.Now(), sum()
			waits, err := writes(writer, began.Add(span))
			perSecond, all := float64(sum()-from)/time.Since(began).Seconds(), float64(sum()-from)
			after, err2 := benchmarks.Stats(ctx, b.rdb)
			stop.Store(true)
			wg.Wait()
			s.must(errors.Join(err, err2))
			if err := failed.Load(); err != nil {
				s.Fatal(*err)
			}
			b.results.add(of, x.name, "reads/s", "1/s", perSecond)
			b.results.add(of, x.name, "ms/wait", "ms", benchmarks.Median(waits))
			b.results.add(of, x.name, "ms/wait-max", "ms", slices.Max(waits))
			b.results.add(of, x.name, "cmds/1000-reads", "1", 1000*scripts(before, after)/all)
		})
	})
}

// lingerMixed is processes, each with a client of its own, who read and write one name without a pause, each as likely as the
// other.
//
//	ops/s       reads and writes
//	cmds/op     scripts that clients sent, per read or write
func lingerMixed(b *bench) {
	for _, count := range []int{2, 8} {
		of := fmt.Sprintf("linger/half-writes/processes=%d", count)
		n, span := pick(b, 5, 1), pick(b, 2*time.Second, 300*time.Millisecond)
		sides := sidesOf("lockkeeper rwlock", lingerTime)
		rounds(n, len(sides), func(i int) {
			b.turn(of, sides[i].name, func(s *stage) {
				name := b.name()
				var locks []lock
				for range count {
					l := rw(s, keeper(s, b.at.rdb(s), lockkeeper.Options{}), name, sides[i].linger)
					read, write := reading(l), waiting(l)
					locks = append(locks, func(ctx context.Context) (release, error) {
						if rand.N(2) == 0 {
							return read(ctx)
						}
						return write(ctx)
					})
				}
				b.rate(s, of, sides[i].name, locks, span)
			})
		})
	}
}

// rate lets so many goroutines lock and release.
func (b *bench) rate(s *stage, of, library string, locks []lock, span time.Duration) {
	_, _, err := together(locks, span/4)
	s.must(err)
	before, err := benchmarks.Stats(ctx, b.rdb)
	s.must(err)
	began := time.Now()
	perOp, _, err := together(locks, span)
	s.must(err)
	ops := float64(time.Since(began)) / perOp
	after, err := benchmarks.Stats(ctx, b.rdb)
	s.must(err)
	b.results.add(of, library, "ops/s", "1/s", 1e9/perOp)
	b.results.add(of, library, "cmds/op", "1", scripts(before, after)/ops)
}

// lingerFrozen is a process that reads some names once, is idle for a while, and is stopped by SIGSTOP, and a writer of each name.
//
//	ms/wait      the writers' median wait
//	ms/wait-max  the longest wait
func lingerFrozen(b *bench) {
	const of = "linger/frozen"
	n, count := pick(b, 3, 1), pick(b, 8, 3)
	sides := sidesOf("lockkeeper rwlock", lingerTime)
	rounds(n, len(sides), func(i int) {
		b.turn(of, sides[i].name, func(s *stage) {
			names := make([]string, count)
			for i := range names {
				names[i] = b.name()
			}
			held, kill, freeze := start(s, role{Redis: b.at.redis, Names: names, Reads: true, Linger: sides[i].linger})
			s.must(<-held)
			freeze()
			waits, errs := make([]float64, count), make([]error, count)
			var wg sync.WaitGroup
			for i, name := range names {
				l := waiting(rw(s, keeper(s, b.at.rdb(s), lockkeeper.Options{}), name, 0))
				wg.Go(func() {
					began := time.Now()
					errs[i] = once(l)
					waits[i] = float64(time.Since(began)) / 1e6
				})
			}
			wg.Wait()
			kill()
			s.must(errors.Join(errs...))
			b.results.add(of, sides[i].name, "ms/wait", "ms", benchmarks.Median(waits))
			b.results.add(of, sides[i].name, "ms/wait-max", "ms", slices.Max(waits))
		})
	})
}

// readOnce reads each name once, and waits until Linger has passed.
func readOnce(s *stage, r role) {
	k := keeper(s, target{redis: r.Redis}.rdb(s), lockkeeper.Options{})
	for _, name := range r.Names {
		s.must(once(reading(rw(s, k, name, r.Linger))))
	}
	time.Sleep(2*r.Linger + 10*time.Millisecond)
}

// lingerTurns is two processes, each with a client of its own in this program, that take one mutex: both again and again, so that one waits
// most of the time; or one after the other, so that without Linger it is free whenever one asks.
//
//	ops/s     locks with their release, of both together
//	cmds/op   scripts that clients sent, per lock
//	fewest-%  the share of the process that has fewer
func lingerTurns(b *bench) {
	n, span := pick(b, 5, 1), pick(b, 2*time.Second, 300*time.Millisecond)
	sides := sidesOf("lockkeeper mutex", lingerTime)
	for _, contended := range []bool{true, false} {
		of := "linger/mutex/in-turns"
		if contended {
			of = "linger/mutex/contended"
		}
		rounds(n, len(sides), func(i int) {
			b.turn(of, sides[i].name, func(s *stage) {
				name := b.name()
				var counts [2]float64
				var locks []lock
				for j := range counts {
					l := waiting(mutexOf(s, b.at, name, sides[i].linger))
					locks = append(locks, func(ctx context.Context) (release, error) {
						counts[j]++
						return l(ctx)
					})
				}
				if !contended {
					turn := 0
					both := locks
					locks = []lock{func(ctx context.Context) (release, error) {
						turn++
						return both[turn%2](ctx)
					}}
				}
				b.rate(s, of, sides[i].name, locks, span)
				b.results.add(of, sides[i].name, "fewest-%", "%", 100*min(counts[0], counts[1])/(counts[0]+counts[1]))
			})
		})
	}
}
