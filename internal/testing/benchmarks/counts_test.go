package benchmarks_test

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/keepers"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

var ctx = context.Background()

// acquire acquires a lease of the name x.
type acquire func(context.Context) (*lockkeeper.Lease, error)

// contenders is the number of keepers that want the lock, each again as soon as it has released it.
const contenders = 8

// ttl is that of leases, and heartbeat that of waiters: none of either is due while commands are counted.
const (
	ttl       = 10 * time.Minute
	heartbeat = time.Minute
)

// TestCountsStayLow limits counts that cost time. Unlike times, they are the same on every machine and in every run:
// operations run one after the other, each in a millisecond of its own, because scripts check whether time has
// passed, and no heartbeat or renewal is due meanwhile. A change that increases a count has to justify it and raise
// the limit here.
func TestCountsStayLow(t *testing.T) {
	redistest.RequireBinary(t)
	for _, c := range []struct {
		name     string
		new      func(*lockkeeper.Keeper) (acquire, error)
		shared   bool    // all may hold it at once
		calls    float64 // that the scripts of a Lock and its Release make, uncontended
		allocs   float64 // of a Lock and its Release, in this process
		handoff  float64 // client commands for each acquisition when all contenders want it
		passing  float64 // calls inside scripts for each of these
		messages float64 // for each of these
	}{
		{"mutex", func(k *lockkeeper.Keeper) (acquire, error) {
			l, err := mutex.New(k, "x", &mutex.Options{TTL: ttl})
			return l.Lock, err
		}, false, 7, 25, 2, 19.1, 1}, // blocked_for reads the expiry of the lease, also for those who are not told
		{"fair", func(k *lockkeeper.Keeper) (acquire, error) {
			l, err := fair.New(k, "x", &fair.Options{TTL: ttl})
			return l.Lock, err
		}, false, 8, 25, 2, 19.1, 1},
		{"rwlock read", func(k *lockkeeper.Keeper) (acquire, error) {
			l, err := rwlock.New(k, "x", &rwlock.Options{TTL: ttl})
			return l.RLock, err
		}, true, 11, 25, 2, 11.9, 0},
		{"rwlock write", func(k *lockkeeper.Keeper) (acquire, error) {
			l, err := rwlock.New(k, "x", &rwlock.Options{TTL: ttl})
			return l.Lock, err
		}, false, 11, 25, 2, 24, 1},
		{"semaphore", func(k *lockkeeper.Keeper) (acquire, error) {
			s, err := semaphore.New(k, "x", 1, &semaphore.Options{TTL: ttl})
			return s.Acquire, err
		}, false, 11, 25, 2, 24, 1},
		{"rate limit, Wait", func(k *lockkeeper.Keeper) (acquire, error) {
			l, err := ratelimit.New(k, "x", 1_000_000, time.Hour, nil)
			return func(ctx context.Context) (*lockkeeper.Lease, error) { return nil, l.Wait(ctx) }, err
		}, true, 7, 18, 1.07, 7, 0}, // the reply is an array
		{"rate limit, Allow", func(k *lockkeeper.Keeper) (acquire, error) {
			l, err := ratelimit.New(k, "x", 1_000_000, time.Hour, nil)
			return func(ctx context.Context) (*lockkeeper.Lease, error) {
				_, err := l.Allow(ctx)
				return nil, err
			}, err
		}, true, 7, 18, 1, 7, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := redistest.Start(t)
			n := &counter{t, s.Client()}
			lock := n.keeper(s, c.new, nil)
			n.warm(lock)
			const runs = 64
			calls := n.count(func() {
				for range runs {
					n.once(lock)
				}
			})
			n.check("calls inside scripts", calls.inside()/runs, c.calls)
			n.check("allocations", n.allocations(lock), c.allocs)

			const each = 8
			count := n.pass
			if c.shared {
				count = n.share
			}
			// A machine that stands still only adds to them, because requests are sent again.
			for range 3 {
				if calls = count(s, c.new, each); calls.scripts() <= c.handoff*contenders*each {
					break
				}
			}
			n.check("client commands for each acquisition", calls.scripts()/(contenders*each), c.handoff)
			n.check("calls inside scripts for each acquisition", calls.inside()/(contenders*each), c.passing)
			n.check("messages for each acquisition", calls["publish"]/(contenders*each), c.messages)
		})
	}
}

type counter struct {
	*testing.T
	rdb redistest.Client
}

// keeper creates a lock in a keeper of its own; waiting is called when a request waits in the queue.
func (n *counter) keeper(s *redistest.Server, new func(*lockkeeper.Keeper) (acquire, error), waiting func(lockkeeper.Event)) acquire {
	n.Helper()
	k := keepers.New(n, s.Client(), &lockkeeper.Options{
		HeartbeatInterval: heartbeat, HeartbeatTimeout: 3 * heartbeat, Logger: quiet.Logger(nil),
		Hooks: lockkeeper.Hooks{Queued: waiting},
	})
	return must.Get(new(k))(n)
}

// allocations returns the allocations of a Lock and its Release: the fewest in some series, because the collector
// and timers on a busy machine only add to them.
func (n *counter) allocations(l acquire) float64 {
	least := math.Inf(1)
	for range 4 {
		least = min(least, testing.AllocsPerRun(50, func() { n.once(l) }))
	}
	return least
}

// share counts the commands for all contenders to acquire a lock together and release it.
func (n *counter) share(s *redistest.Server, new func(*lockkeeper.Keeper) (acquire, error), times int) counts {
	n.Helper()
	var locks []acquire
	for range contenders {
		l := n.keeper(s, new, nil)
		n.warm(l)
		locks = append(locks, l)
	}
	return n.count(func() {
		for range times {
			var leases []*lockkeeper.Lease
			for _, l := range locks {
				leases = append(leases, n.get(l))
			}
			for _, l := range leases {
				n.give(l)
			}
		}
	})
}

// pass counts the commands to pass a lock on through all contenders. The holder releases it when all others wait,
// and only then waits again.
func (n *counter) pass(s *redistest.Server, new func(*lockkeeper.Keeper) (acquire, error), times int) counts {
	n.Helper()
	type turn struct {
		who   int
		lease *lockkeeper.Lease
	}
	inLine, turns := make(chan lockkeeper.Event, contenders), make(chan turn, contenders)
	var locks []acquire
	for range contenders {
		locks = append(locks, n.keeper(s, new, func(e lockkeeper.Event) { inLine <- e }))
	}
	var all sync.WaitGroup
	wants := func(i int) {
		all.Go(func() { turns <- turn{i, n.get(locks[i])} })
	}
	next := func() turn {
		t := <-turns
		if t.lease == nil {
			n.FailNow()
		}
		return t
	}
	for i := range contenders {
		wants(i)
	}
	holder := next()
	for range contenders - 1 {
		<-inLine
	}
	round := func() {
		for range contenders {
			n.give(holder.lease)
			last := holder.who
			holder = next()
			wants(last)
			<-inLine
		}
	}
	for range warmed {
		round() // now all keepers have subscribed
	}
	c := n.count(func() {
		for range times {
			round()
		}
	})
	for range contenders - 1 {
		n.give(holder.lease)
		holder = next()
	}
	n.give(holder.lease)
	all.Wait()
	return c
}

// warmed is after how many acquisitions a keeper has connected by itself for what it sends alone, and checked that once.
const warmed = 20

func (n *counter) warm(l acquire) {
	for range warmed {
		n.once(l)
	}
}

func (n *counter) once(l acquire) { n.give(n.get(l)) }

// get and give begin in a millisecond of their own.
func (n *counter) get(l acquire) *lockkeeper.Lease {
	time.Sleep(time.Millisecond)
	lease, err := l(ctx)
	must.Report(n, err)
	return lease
}

func (n *counter) give(l *lockkeeper.Lease) {
	time.Sleep(time.Millisecond)
	must.Report(n, l.Release(ctx))
}

func (n *counter) check(what string, got, most float64) {
	n.Helper()
	n.Logf("%s: %.2f, at most %.2f", what, got, most)
	check.That(n, got <= most, "%s: %.2f, at most %.2f", what, got, most)
}

// counts is the number of calls of each command, including those in scripts.
type counts map[string]float64

func (n *counter) count(f func()) counts {
	n.Helper()
	must.OK(n, n.rdb.ConfigResetStat(ctx).Err())
	f()
	c := counts{}
	for name, stat := range must.Get(benchmarks.Stats(ctx, n.rdb))(n) {
		c[name] = float64(stat.Calls)
	}
	return c
}

func (c counts) scripts() float64 { return c["evalsha"] + c["eval"] }

// inside returns the number of commands that scripts have run.
func (c counts) inside() float64 {
	var all float64
	for name, calls := range c {
		switch name {
		case "eval", "evalsha", "config|resetstat", "hello", "client|setinfo", "client|maint_notifications", "ping", "subscribe":
		default:
			all += calls
		}
	}
	return all
}
