package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// published is the least that a hand-off through the server takes: a bare PUBLISH to a waiter who stands in a line of this
// process. Nothing is locked at the server, and a waiter reads its message itself.
func published() library {
	type line struct {
		sync.Mutex // guards what follows
		held       bool
		waiting    []string // their channels
	}
	var lines sync.Map // by name
	return library{
		name: "bare, published",
		open: func(t redistest.TB, at target, _ time.Duration) client {
			rdb := at.rdb(t)
			return client{lock: func(name string) lock {
				known, _ := lines.LoadOrStore(name, &line{})
				l := known.(*line)
				channel := name + ":" + rand.Text()
				sub := rdb.Subscribe(ctx, channel)
				t.Cleanup(func() { _ = sub.Close() })
				if _, err := sub.Receive(ctx); err != nil { // the subscription is confirmed
					t.Fatal(err)
				}
				give := func() error {
					l.Lock()
					l.held = len(l.waiting) > 0
					if !l.held {
						l.Unlock()
						return nil
					}
					next := l.waiting[0]
					l.waiting = l.waiting[1:]
					l.Unlock()
					return rdb.Publish(ctx, next, "").Err()
				}
				return func(ctx context.Context) (release, error) {
					if err := ctx.Err(); err != nil {
						return nil, err
					}
					l.Lock()
					free := !l.held
					l.held = true
					if !free {
						l.waiting = append(l.waiting, channel)
					}
					l.Unlock()
					if !free {
						// Not until ctx ends: a waiter in the queue gets the lock even if the time is over.
						if _, err := sub.ReceiveTimeout(context.Background(), 5*time.Second); err != nil {
							return nil, err
						}
					}
					return give, nil
				}
			}}
		},
	}
}

// handoff is contenders for one name. Whoever has it keeps it for 1 ms, so that contenders are queued by then, sends
// two PINGs of which the second counts, and gives it back: PING and hand-off find the machine in the same state, that
// after a round trip. Who gave it back comes again when another has it.
//
//	x-ping      the median hand-off, from the call of the release to the next holder running, over the median PING
//	p99-x-ping  the 99th percentile of the hand-offs over the median PING
//	ns/handoff  the median hand-off
//	ns/ping     the median PING
func handoff(b *bench) {
	for _, contenders := range []int{2, 64} {
		of := fmt.Sprintf("handoff/contenders=%d", contenders)
		sides := append(b.present(libraries), published())
		n, span := pick(b, 3, 1), pick(b, 800*time.Millisecond, 400*time.Millisecond)
		rounds(n, len(sides), func(i int) {
			b.turn(of, sides[i].name, func(s *stage) {
				handoffs, pings := b.handOn(s, sides[i], b.at, contenders, span)
				if len(handoffs) == 0 {
					s.Fatalf("no hand-off in %v", span)
				}
				ping := benchmarks.Median(pings)
				b.results.add(of, sides[i].name, "x-ping", "1", benchmarks.Median(handoffs)/ping)
				b.results.add(of, sides[i].name, "p99-x-ping", "1", benchmarks.Percentile(handoffs, 99)/ping)
				b.results.add(of, sides[i].name, "ns/handoff", "ns", benchmarks.Median(handoffs))
				b.results.add(of, sides[i].name, "ns/ping", "ns", ping)
			})
		})
	}
}

// handOn lets a lock go round for so long after a quarter of that to warm up, and returns how long hand-offs took, and
// PINGs between them, in nanoseconds.
func (b *bench) handOn(s *stage, l library, at target, contenders int, span time.Duration) (handoffs, pings []float64) {
	name := b.name()
	locks := make([]lock, contenders)
	for i := range locks {
		locks[i] = l.open(s, at, ttl).lock(name)
	}
	warm := span / 4
	inner, cancel := context.WithTimeout(ctx, warm+span)
	defer cancel()
	began := time.Now()
	var c circle
	var wg sync.WaitGroup
	for _, l := range locks {
		wg.Go(func() {
			c.join(inner, l, func() {
				time.Sleep(time.Millisecond)
				_ = b.rdb.Ping(ctx).Err()
				start := time.Now()
				err := b.rdb.Ping(ctx).Err()
				ping := time.Since(start)
				if err == nil && time.Since(began) > warm {
					c.mu.Lock()
					pings = append(pings, float64(ping))
					c.mu.Unlock()
				}
			})
		})
	}
	time.Sleep(warm)
	c.start()
	wg.Wait()
	s.must(c.failed)
	return c.handoffs, pings
}

// circle is a lock that goes from hand to hand, each time to another contender.
type circle struct {
	mu       sync.Mutex
	next     chan struct{} // closed when the next one holds it
	released time.Time     // when the last one began to give it back
	handoffs []float64     // in nanoseconds
	failed   error
}

// join takes part until ctx ends or the lock fails: it takes the lock, calls hold, gives the lock back, and comes again
// when another has it.
func (c *circle) join(ctx context.Context, l lock, hold func()) {
	fail := func(err error) bool {
		if err != nil && ctx.Err() == nil {
			c.mu.Lock()
			c.failed = err
			c.mu.Unlock()
		}
		return err != nil
	}
	for {
		release, err := l(ctx)
		now := time.Now()
		if fail(err) {
			return
		}
		c.mu.Lock()
		if c.next != nil {
			close(c.next)
			c.handoffs = append(c.handoffs, float64(now.Sub(c.released)))
		}
		mine := make(chan struct{})
		c.next = mine
		c.mu.Unlock()
		hold()
		c.mu.Lock()
		c.released = time.Now()
		c.mu.Unlock()
		if fail(release()) {
			return
		}
		select {
		case <-mine:
		case <-ctx.Done():
			return
		}
	}
}

// start forgets the hand-offs so far.
func (c *circle) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handoffs = nil
}

// count is how many hand-offs there were since start.
func (c *circle) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.handoffs)
}
