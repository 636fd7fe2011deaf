package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// retained is each of our primitives with Retain against the same without it, in turns.
func retained(b *bench) {
	for _, f := range []func(*bench){retainedReaders, retainedWriter, retainedMixed, retainedFrozen, retainedMutex, retainedTurns} {
		f(b)
	}
}

// retainSides are the rows of a case: without Retain and with it.
func retainSides(kind string) [2]string { return [2]string{kind, kind + ", Retain"} }

// watched is a keeper that knows how many of its grants were made inside.
type watched struct {
	*lockkeeper.Keeper
	local atomic.Int64
}

func watch(t redistest.TB, rdb redis.UniversalClient) *watched {
	w := &watched{}
	w.Keeper = keeper(t, rdb, lockkeeper.Options{Hooks: lockkeeper.Hooks{AcquireDone: func(e lockkeeper.Event) {
		if e.Local {
			w.local.Add(1)
		}
	}}})
	return w
}

// retains uses a lock until the process retains its lease.
func (w *watched) retains(l lock) error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		before := w.local.Load()
		if err := once(l); err != nil || w.local.Load() > before {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("no lease is retained")
		}
	}
}

// rw is the read-write lock of a name.
func rw(s *stage, k *lockkeeper.Keeper, name string, retain bool) *rwlock.Lock {
	l, err := rwlock.New(k, name, &rwlock.Options{TTL: ttl, Retain: retain})
	s.must(err)
	return l
}

func reading(l *rwlock.Lock) lock { return waiting(benchmarks.Func(l.RLock)) }

// retainAll makes a process retain a read lease of each name.
func retainAll(s *stage, at target, names []string) error {
	w := watch(s, at.rdb(s))
	for _, name := range names {
		if err := w.retains(reading(rw(s, w.Keeper, name, true))); err != nil {
			return err
		}
	}
	return nil
}

// retainedReaders is 64 readers of one process, each of whom reads 100 times in a row and pauses for 1 ms, and a writer with a client
// of its own that comes every 100 ms and writes for 1 ms.
//
//	reads/s       reads that ended
//	ms/wait       the writer's median wait
//	ms/wait-max   its longest wait
//	cmds/read     scripts that clients sent, per read
func retainedReaders(b *bench) {
	const of, count, row = "retained/readers", 64, 100
	n, span := pick(b, 5, 1), pick(b, 3*time.Second, 500*time.Millisecond)
	sides := retainSides("rwlock")
	rounds(n, len(sides), func(i int) {
		b.turn(of, sides[i], func(s *stage) {
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
				l := reading(rw(s, k, name, i == 1))
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
			writer := waiting(rw(s, keeper(s, b.at.rdb(s), lockkeeper.Options{}), name, false))
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
			b.results.add(of, sides[i], "reads/s", "1/s", perSecond)
			b.results.add(of, sides[i], "ms/wait", "ms", benchmarks.Median(waits))
			b.results.add(of, sides[i], "ms/wait-max", "ms", slices.Max(waits))
			scripts := library{}.count(after).Calls - library{}.count(before).Calls
			b.results.add(of, sides[i], "cmds/read", "1", float64(scripts)/all)
		})
	})
}

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

// retainedWriter is a writer of names that another process, with a client of its own in this program, reads. Nobody is inside when it
// writes; with Retain the process has a lease. Names are used without Retain and with it in turns, each several times but not more often
// than a process retains a lease again. In the second case both clients have a network of 1 ms each way, so that the time of round
// trips is not lost in that of scripts and of waking processes.
//
//	x-ping        the median wait over the median PING through the writer's client
//	p99-x-ping    the 99th percentile of the waits over the median PING
//	first-x-ping  the median wait of the first writes of a name, which can take one round trip more, over the median PING
//	ns/wait       the median wait
//	ns/ping       the median PING
func retainedWriter(b *bench) {
	n, times := pick(b, 5, 1), pick(b, 10, 4)
	sides := retainSides("rwlock")
	for _, delay := range []time.Duration{0, time.Millisecond} {
		of, each := "retained/writer", pick(b, 50, 20)
		if delay > 0 {
			of, each = of+"/network="+delay.String(), pick(b, 10, 5)
		}
		rounds(n, 1, func(int) {
			b.turn(of, sides[1], func(s *stage) {
				client := func() *redis.Client {
					o, err := redis.ParseURL(b.at.redis)
					s.must(err)
					if delay > 0 {
						net := faultnet.New((&net.Dialer{}).DialContext)
						net.Delay(delay)
						net.DelayReplies(delay)
						o.Dialer = net.Dial
					}
					c := redis.NewClient(o)
					s.Cleanup(func() { _ = c.Close() })
					return c
				}
				reader, rdb := watch(s, client()), client()
				writer := keeper(s, rdb, lockkeeper.Options{})
				open := func(name string, retain bool) (read, write lock) {
					return reading(rw(s, reader.Keeper, name, retain)), waiting(rw(s, writer, name, false))
				}
				read, write := open(b.name(), true)
				s.must(reader.retains(read))
				s.must(once(write)) // the first wait of a keeper subscribes
				var reads, writes [2][]lock
				for j := range 2 * each {
					read, write := open(b.name(), j%2 == 1)
					reads[j%2], writes[j%2] = append(reads[j%2], read), append(writes[j%2], write)
				}
				var waits, firsts [2][]float64
				var pings []float64
				for round := range times {
					began := time.Now()
					for j := range each {
						for turn := range 2 {
							i := (j + turn) % 2
							if i == 0 {
								s.must(once(reads[i][j]))
							} else {
								s.must(reader.retains(reads[i][j]))
							}
							time.Sleep(time.Millisecond)
							s.must(rdb.Ping(ctx).Err()) // the machine is in the same state for both
							start := time.Now()
							s.must(rdb.Ping(ctx).Err())
							pings = append(pings, float64(time.Since(start)))
							start = time.Now()
							release, err := writes[i][j](ctx)
							s.must(err)
							wait := float64(time.Since(start))
							s.must(release())
							if round == 0 {
								firsts[i] = append(firsts[i], wait)
							} else {
								waits[i] = append(waits[i], wait)
							}
						}
					}
					time.Sleep(time.Until(began.Add(30 * time.Millisecond)))
				}
				ping := benchmarks.Median(pings)
				for i, w := range waits {
					b.results.add(of, sides[i], "x-ping", "1", benchmarks.Median(w)/ping)
					b.results.add(of, sides[i], "p99-x-ping", "1", benchmarks.Percentile(w, 99)/ping)
					b.results.add(of, sides[i], "first-x-ping", "1", benchmarks.Median(firsts[i])/ping)
					b.results.add(of, sides[i], "ns/wait", "ns", benchmarks.Median(w))
					b.results.add(of, sides[i], "ns/ping", "ns", ping)
				}
			})
		})
	}
}

// retainedMixed is processes, each with a client of its own, who read and write one name without a pause, each as likely as the
// other.
//
//	ops/s       reads and writes
//	cmds/op     scripts that clients sent, per read or write
func retainedMixed(b *bench) {
	for _, count := range []int{2, 8} {
		of := fmt.Sprintf("retained/half-writes/processes=%d", count)
		n, span := pick(b, 5, 1), pick(b, 2*time.Second, 300*time.Millisecond)
		sides := retainSides("rwlock")
		rounds(n, len(sides), func(i int) {
			b.turn(of, sides[i], func(s *stage) {
				name := b.name()
				var locks []lock
				for range count {
					l := rw(s, keeper(s, b.at.rdb(s), lockkeeper.Options{}), name, i == 1)
					read, write := reading(l), waiting(l)
					locks = append(locks, func(ctx context.Context) (release, error) {
						if rand.N(2) == 0 {
							return read(ctx)
						}
						return write(ctx)
					})
				}
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
				b.results.add(of, sides[i], "ops/s", "1/s", 1e9/perOp)
				scripts := library{}.count(after).Calls - library{}.count(before).Calls
				b.results.add(of, sides[i], "cmds/op", "1", float64(scripts)/ops)
			})
		})
	}
}

// retainedFrozen is a process that retains a read lease of some names, reads none of them, and is stopped by SIGSTOP, and a writer of
// each name.
//
//	ms/wait      the writers' median wait
//	ms/wait-max  the longest wait
func retainedFrozen(b *bench) {
	const of = "retained/frozen"
	n, count := pick(b, 3, 1), pick(b, 8, 3)
	rounds(n, 1, func(int) {
		side := retainSides("rwlock")[1]
		b.turn(of, side, func(s *stage) {
			names := make([]string, count)
			for i := range names {
				names[i] = b.name()
			}
			held, kill, freeze := start(s, role{Redis: b.at.redis, Names: names, Retain: true})
			s.must(<-held)
			freeze()
			waits, errs := make([]float64, count), make([]error, count)
			var wg sync.WaitGroup
			for i, name := range names {
				l := waiting(rw(s, keeper(s, b.at.rdb(s), lockkeeper.Options{}), name, false))
				wg.Go(func() {
					began := time.Now()
					errs[i] = once(l)
					waits[i] = float64(time.Since(began)) / 1e6
				})
			}
			wg.Wait()
			kill()
			s.must(errors.Join(errs...))
			b.results.add(of, side, "ms/wait", "ms", benchmarks.Median(waits))
			b.results.add(of, side, "ms/wait-max", "ms", slices.Max(waits))
		})
	})
}

// mutexes is the mutexes of one process, by their names.
func mutexes(s *stage, at target, retain bool) func(name string) lock {
	k := keeper(s, at.rdb(s), lockkeeper.Options{})
	return func(name string) lock {
		m, err := mutex.New(k, name, &mutex.Options{TTL: ttl, Retain: retain})
		s.must(err)
		return waiting(m)
	}
}

// retainedMutex is one goroutine that takes a mutex and gives it back, again and again.
//
//	ns/op      time per lock with its release
//	allocs/op  allocations in the process
func retainedMutex(b *bench) {
	const of = "retained/mutex"
	n, span := pick(b, 5, 1), pick(b, 500*time.Millisecond, 100*time.Millisecond)
	sides := retainSides("mutex")
	rounds(n, len(sides), func(i int) {
		b.turn(of, sides[i], func(s *stage) {
			locks := []lock{mutexes(s, b.at, i == 1)(b.name())}
			_, _, err := together(locks, span/4)
			s.must(err)
			perOp, allocs, err := together(locks, span)
			s.must(err)
			b.results.add(of, sides[i], "ns/op", "ns", perOp)
			b.results.add(of, sides[i], "allocs/op", "1", allocs)
		})
	})
}

// retainedTurns is two processes, each with a client of its own in this program, that take one mutex: one after the other, so that it
// is free whenever one asks; or both again and again, so that one waits most of the time.
//
//	ops/s    locks with their release, of both together
//	cmds/op  scripts that clients sent, per lock
func retainedTurns(b *bench) {
	n, span := pick(b, 5, 1), pick(b, 2*time.Second, 300*time.Millisecond)
	sides := retainSides("mutex")
	for _, contended := range []bool{false, true} {
		of := "retained/mutex/in-turns"
		if contended {
			of = "retained/mutex/contended"
		}
		rounds(n, len(sides), func(i int) {
			b.turn(of, sides[i], func(s *stage) {
				name := b.name()
				locks := []lock{mutexes(s, b.at, i == 1)(name), mutexes(s, b.at, i == 1)(name)}
				if !contended {
					turn := 0
					both := locks
					locks = []lock{func(ctx context.Context) (release, error) {
						turn++
						return both[turn%2](ctx)
					}}
				}
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
				b.results.add(of, sides[i], "ops/s", "1/s", 1e9/perOp)
				scripts := library{}.count(after).Calls - library{}.count(before).Calls
				b.results.add(of, sides[i], "cmds/op", "1", float64(scripts)/ops)
			})
		})
	}
}
