package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/redis/go-redis/v9"
)

// few is the largest count of waiters or leases that every library is measured with, in several rounds; larger counts are
// measured once.
const few = 1000

// scale is many waiters and many leases.
func scale(b *bench) {
	for _, count := range pick(b, []int{10, few, 100_000}, []int{10, few}) {
		waitersOf(b, count)
	}
	for _, count := range pick(b, []int{1, few, 100_000}, []int{1, few}) {
		leasesOf(b, count)
	}
}

// repeats is how many rounds there are with so many waiters or leases.
func repeats(b *bench, count int) int {
	if count > few {
		return 1
	}
	return pick(b, 3, 1)
}

// waitersOf is so many waiters for one name, through 10 clients. They give the lock back at once, and come again when
// another has it. More than 1,000 are measured only where they queue: to poll, they would have to send 100,000
// requests and more in a second.
//
//	server-us/op    time of the server per hand-off, for all that clients send meanwhile
//	net-us/op       the same without what the waiters cost while they only wait, where they queue
//	handoffs/s      hand-offs
//	idle-us/s       time of the server per second while somebody holds the lock and the others wait
//	B/waiter        memory of the clients' process per waiter, its goroutine included
//	redis-B/waiter  memory of the server per waiter, as MEMORY USAGE has it
func waitersOf(b *bench, waiters int) {
	of := fmt.Sprintf("scale/waiters=%d", waiters)
	var sides []library
	for _, l := range libraries {
		if !l.etcd && (waiters <= few || l.inLine) {
			sides = append(sides, l)
		}
	}
	still := pick(b, protocol.DefaultHeartbeatInterval, 300*time.Millisecond) // a whole one, or there may be none in it
	span := pick(b, time.Second, 300*time.Millisecond)
	if waiters > few { // heartbeats are a good part of what the server does
		span = still
	}
	rounds(repeats(b, waiters), len(sides), func(i int) {
		l := sides[i]
		b.turn(of, l.name, func(s *stage) {
			name := b.name()
			clients := make([]client, 10)
			for i := range clients {
				clients[i] = l.open(s, b.at, ttl)
			}
			hold := clients[0].lock(name)
			s.must(once(hold)) // so that scripts are loaded and subscriptions there
			release, err := hold(ctx)
			s.must(err)
			locks := make([]lock, waiters)
			for i := range locks {
				locks[i] = clients[i%len(clients)].lock(name)
			}
			process, server := b.processMemory(), b.serverMemory(s)
			inner, cancel := context.WithCancel(ctx)
			defer cancel()
			var round circle
			var wg sync.WaitGroup
			for _, l := range locks {
				wg.Go(func() { round.join(inner, l, func() {}) })
			}
			line := waiters
			if l.local {
				line = min(line, len(clients))
			}
			b.inLine(s, clients[0], []string{name}, line)
			if waiters >= few {
				process, server = b.processMemory()-process, b.serverMemory(s)-server
			}
			idle := b.serverTime(s, l, still)
			s.must(release())
			time.Sleep(100 * time.Millisecond)
			round.start()
			busy := b.serverTime(s, l, span)
			done := round.count()
			cancel()
			wg.Wait()
			s.must(round.failed)
			if done == 0 {
				s.Fatalf("no hand-off in %v", span)
			}
			b.results.add(of, l.name, "server-us/op", "us", busy/float64(done))
			if l.inLine {
				b.results.add(of, l.name, "net-us/op", "us", (busy-idle*span.Seconds()/still.Seconds())/float64(done))
			}
			b.results.add(of, l.name, "handoffs/s", "1/s", float64(done)/span.Seconds())
			b.results.add(of, l.name, "idle-us/s", "us", idle/still.Seconds())
			if waiters >= few {
				b.results.add(of, l.name, "B/waiter", "B", process/float64(waiters))
				b.results.add(of, l.name, "redis-B/waiter", "B", server/float64(waiters))
			}
		})
	})
}

// leasesOf is so many leases that one process holds through one client.
//
//	goroutines      how many there are more than before the client was opened
//	B/lease         memory of the process per lease, the lock's object included
//	redis-B/lease   memory of the server per lease, as MEMORY USAGE has it
//	cmds/s          commands per second while they are held, for as long as it takes to renew each of them once
//	cpu-us/renewal  time of the process's threads per such command
func leasesOf(b *bench, leases int) {
	of := fmt.Sprintf("scale/leases=%d", leases)
	var sides []library
	for _, l := range libraries {
		// The fair lock's leases are the mutex's.
		if l.name != "lockkeeper fair" && !l.etcd {
			sides = append(sides, l)
		}
	}
	rounds(repeats(b, leases), len(sides), func(i int) {
		l := sides[i]
		b.turn(of, l.name, func(s *stage) {
			time.Sleep(20 * time.Millisecond) // for goroutines of the turn before to end
			goroutines := runtime.NumGoroutine()
			c := l.open(s, b.at, ttl)
			warm := make([]lock, 64)
			for i := range warm {
				warm[i] = c.lock(b.name())
			}
			_, _, err := together(warm, 10*time.Millisecond)
			s.must(err)
			names := make([]string, leases)
			for i := range names {
				names[i] = b.name()
			}
			held := make([]release, leases)
			each := func(f func(i int) error) {
				var failed atomic.Pointer[error]
				var wg sync.WaitGroup
				for g := range min(64, leases) {
					wg.Go(func() {
						for i := g; i < leases; i += 64 {
							if err := f(i); err != nil {
								failed.Store(&err)
								return
							}
						}
					})
				}
				wg.Wait()
				if err := failed.Load(); err != nil {
					s.Fatal(*err)
				}
			}
			process, server := b.processMemory(), b.serverMemory(s)
			each(func(i int) (err error) {
				held[i], err = c.lock(names[i])(ctx)
				return err
			})
			b.results.add(of, l.name, "goroutines", "1", float64(runtime.NumGoroutine()-goroutines))
			if leases >= few {
				b.results.add(of, l.name, "B/lease", "B", (b.processMemory()-process)/float64(leases))
				b.results.add(of, l.name, "redis-B/lease", "B", (b.serverMemory(s)-server)/float64(leases))
			}
			if leases > few && l.renewals > 0 {
				span := ttl / time.Duration(l.renewals)
				before, err := benchmarks.Stats(ctx, b.rdb)
				s.must(err)
				cpu := cpuTime(s)
				time.Sleep(span)
				cpu = cpuTime(s) - cpu
				after, err := benchmarks.Stats(ctx, b.rdb)
				s.must(err)
				commands := float64(l.count(after).Calls - l.count(before).Calls)
				b.results.add(of, l.name, "cmds/s", "1/s", commands/span.Seconds())
				b.results.add(of, l.name, "cpu-us/renewal", "us", cpu/commands)
			}
			each(func(i int) error { return held[i]() })
		})
	})
}

// serverTime is how long the server runs what clients of a library send meanwhile, in microseconds.
func (b *bench) serverTime(s *stage, l library, span time.Duration) float64 {
	before, err := benchmarks.Stats(ctx, b.rdb)
	s.must(err)
	time.Sleep(span)
	after, err := benchmarks.Stats(ctx, b.rdb)
	s.must(err)
	return l.count(after).Micros - l.count(before).Micros
}

// serverMemory is what the keys of this run take, as MEMORY USAGE has it.
func (b *bench) serverMemory(s *stage) float64 {
	all := map[string]int64{} // SCAN may return a key twice
	s.must(b.keys(func(keys []string) error {
		answers, err := b.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, k := range keys {
				p.MemoryUsage(ctx, k, 0)
			}
			return nil
		})
		for i, a := range answers {
			all[keys[i]] = a.(*redis.IntCmd).Val()
		}
		if errors.Is(err, redis.Nil) { // one has expired meanwhile
			return nil
		}
		return err
	}))
	sum := int64(0)
	for _, bytes := range all {
		sum += bytes
	}
	return float64(sum)
}

// processMemory is the heap that is in use in this process, and its goroutines' stacks.
func (b *bench) processMemory() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

// cpuTime is how long this process's threads have run, in microseconds.
func cpuTime(s *stage) float64 {
	var u syscall.Rusage
	s.must(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3
}
