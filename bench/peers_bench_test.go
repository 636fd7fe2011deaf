package bench_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

// side is one of the libraries, with a server of its own: the client-side caching that rueidislock lives on makes every
// write at a server dearer, also those of others.
type side struct {
	*testing.B
	name string
	rdb  *redis.Client                 // for looking, not for locking
	open func() func(name string) lock // a client, and the locks by it

	commands []string // what its clients send; what only scripts call has other names
	took     []float64
	waited   []float64
}

// sides is all libraries; the first is ours.
func sides(b *testing.B) []*side {
	b.Helper()
	start := func(name string, open func(s *redistest.Server) func(name string) lock, commands ...string) *side {
		s := redistest.Start(b)
		commands = append(commands, "eval", "evalsha", "subscribe", "ssubscribe", "unsubscribe", "ping", "hello")
		return &side{B: b, name: name, rdb: s.Client(), open: func() func(string) lock { return open(s) }, commands: commands}
	}
	return []*side{
		start("lockkeeper", func(s *redistest.Server) func(string) lock {
			mutex := ours(b, s.Client(), lockkeeper.Options{})
			return func(name string) lock { return waiting(mutex(name)) }
		}),
		start("redsync", func(s *redistest.Server) func(string) lock {
			rdb := s.Client()
			return func(name string) lock { return redsyncLock(rdb, name, redsync.WithTries(1000)) }
		}, "set"),
		start("redislock", func(s *redistest.Server) func(string) lock {
			rdb := s.Client()
			return func(name string) lock {
				return redislockLock(rdb, name, redislock.LinearBackoff(100*time.Millisecond))
			}
		}),
		start("rueidislock", func(s *redistest.Server) func(string) lock { return rueidisLocks(b, s.Addr) }),
	}
}

// once is a Lock and its Release.
func (s *side) once(l lock) {
	release, err := l(ctx)
	if err == nil {
		err = release()
	}
	if err != nil {
		s.Errorf("%s: %v", s.name, err)
	}
}

// apart has so many goroutines lock names of their own, through one client.
func (s *side) apart(goroutines int) func(ops int) {
	locks, of := []lock(nil), s.open()
	for i := range goroutines {
		locks = append(locks, of("x"+strconv.Itoa(i)))
	}
	return func(ops int) {
		var wg sync.WaitGroup
		for i, l := range locks {
			wg.Go(func() {
				for n := i; n < ops; n += goroutines {
					s.once(l)
				}
			})
		}
		wg.Wait()
	}
}

// together has so many goroutines lock one name for 1 ms, again and again, each through a client of its own.
func (s *side) together(goroutines int) func(ops int) {
	locks := []lock(nil)
	for range goroutines {
		locks = append(locks, s.open()("x"))
	}
	return func(ops int) {
		// Who still waits when all is done is called off: it may be asleep for long. So no wait is seen to be longer than
		// the block, which flatters those that are.
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		var done atomic.Int64
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, l := range locks {
			wg.Go(func() {
				for inner.Err() == nil {
					start := time.Now()
					release, err := l(inner)
					wait := float64(time.Since(start))
					mu.Lock()
					s.waited = append(s.waited, wait)
					mu.Unlock()
					if err != nil {
						if inner.Err() == nil {
							s.Errorf("%s: %v", s.name, err)
						}
						return
					}
					if inner.Err() == nil {
						time.Sleep(time.Millisecond)
					}
					if done.Add(1) == int64(ops) {
						cancel()
					}
					if err := release(); err != nil {
						s.Errorf("%s: %v", s.name, err)
					}
				}
			})
		}
		wg.Wait()
	}
}

// turns lets the sides run in turns, each for blocks of so many operations, after a warm-up block that does not count.
// Who begins alternates.
func turns(b *testing.B, block int, all []*side, run func(*side) func(ops int)) {
	var runs []func(int)
	for _, s := range all {
		runs = append(runs, run(s))
		runs[len(runs)-1](block)
		s.waited = nil
		if err := s.rdb.ConfigResetStat(ctx).Err(); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	for round, n := 0, b.N; n > 0; round++ {
		ops := min(block, n)
		n -= ops
		for i := range all {
			i = (round + i) % len(all)
			start := time.Now()
			runs[i](ops)
			all[i].took = append(all[i].took, float64(time.Since(start))/float64(ops))
		}
	}
	b.StopTimer()
	us := all[0]
	b.ReportMetric(percentile(us.took, 50), "ns/op")
	for _, s := range all[1:] {
		b.ReportMetric(percentile(us.took, 50)/percentile(s.took, 50), "x-"+s.name)
	}
}

// BenchmarkPeersUncontended is one goroutine.
func BenchmarkPeersUncontended(b *testing.B) {
	turns(b, 250, sides(b), func(s *side) func(int) { return s.apart(1) })
}

// BenchmarkPeersParallel is 64 goroutines on names of their own.
func BenchmarkPeersParallel(b *testing.B) {
	turns(b, 50*64, sides(b), func(s *side) func(int) { return s.apart(64) })
}

// BenchmarkPeersContended is 8 goroutines that want one name.
func BenchmarkPeersContended(b *testing.B) {
	all := sides(b)
	turns(b, 200, all, func(s *side) func(int) { return s.together(8) })
	for i, s := range all {
		perOp := float64(calls(b, s.rdb, s.commands...)) / float64(b.N)
		if i == 0 {
			b.ReportMetric(perOp, "cmds/op")
			continue
		}
		b.ReportMetric(perOp, s.name+"-cmds/op")
		b.ReportMetric(percentile(all[0].waited, 99)/percentile(s.waited, 99), "p99-x-"+s.name)
	}
}

func percentile(list []float64, p int) float64 {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}
