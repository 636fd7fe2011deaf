package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/redis/go-redis/v9"
)

// Times of keepers and leases are short, because tests wait for them.
const (
	ttl               = 400 * time.Millisecond
	heartbeatInterval = 100 * time.Millisecond
	heartbeatTimeout  = 3 * heartbeatInterval
)

// node is a keeper with a client and a network of its own.
type node struct {
	*lockkeeper.Keeper
	net *faultnet.Net
	rdb *redis.Client

	mu     sync.Mutex // guards queued
	queued map[string]int64
}

func newNode(addr string, heartbeatTimeout time.Duration) (*node, error) {
	n := &node{queued: map[string]int64{}}
	n.net = faultnet.New(faultnet.TCP)
	n.rdb = redis.NewClient(&redis.Options{
		Addr: addr, Dialer: n.net.Dial, DialerRetries: 1, ReadTimeout: time.Second,
		PoolSize: 5, PipelinePoolSize: 8, // each connection in the pools, broken or not, has 64 KiB of buffers
	})
	var err error
	n.Keeper, err = lockkeeper.New(n.rdb, &lockkeeper.Options{
		HeartbeatInterval: heartbeatInterval, HeartbeatTimeout: heartbeatTimeout, Logger: silent,
		Retry: lockkeeper.RetryPolicy{MaxBackoff: heartbeatInterval},
		Hooks: lockkeeper.Hooks{Queued: func(e lockkeeper.Event) {
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.queued[e.Token] == 0 {
				n.queued[e.Token] = now()
			}
		}},
	})
	return n, err
}

// close restores the network and closes.
func (n *node) close() {
	n.net.Restore()
	_ = n.Close()
	_ = n.rdb.Close()
}

// waited returns when a token was known to be in the queue, and forgets it.
func (n *node) waited(token string) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	at := n.queued[token]
	delete(n.queued, token)
	return at
}

// work uses a lock once: it waits until its context ends, holds for a while or until the lease is lost, and releases
// it. tell, if not nil, is called with the span when it was granted, with its deadline as its end, and again before
// the release. The result is the final span, without a fence if nothing was granted.
func (n *node) work(ctx context.Context, name string, u use, hold time.Duration, tell func(span)) (span, error) {
	s := span{Name: name, Weight: u.weight, Shares: u.shares, Called: now()}
	if u.take != nil {
		err := u.take(ctx, u.weight, func(_ context.Context, fence uint64) error {
			// It was taken when it was called for, or later.
			s.Granted, s.Fence, s.Until = now(), fence, s.Called+int64(u.per)
			return nil
		})
		return s, err
	}
	lease, err := u.acquire(ctx)
	if err != nil {
		return s, err
	}
	s.Granted, s.Fence, s.Queued = now(), lease.Fence(), n.waited(lease.Token())
	if tell != nil {
		s.Until = s.Granted + int64(time.Until(lease.Deadline()))
		tell(s)
	}
	select {
	case <-time.After(hold):
	case <-lease.Done():
	}
	s.ends(lease)
	if tell != nil {
		tell(s)
	}
	return s, s.end(context.Background(), lease)
}

// TestLinearizability lets keepers contend, without faults and while connections break, replies are lost and scripts
// are flushed.
func TestLinearizability(t *testing.T) {
	t.Parallel()
	for _, p := range primitives {
		for _, faulty := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/faults=%t", p.kind, faulty), func(t *testing.T) {
				t.Parallel()
				linear(t, p, faulty)
			})
		}
	}
}

func linear(t *testing.T, p primitive, faulty bool) {
	seed := rand.Uint64()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed) // of the faults and the pauses; timing differs
		}
	}()
	s := redistest.Start(t)
	h := newHistory()
	h.capacity["x"], h.ordered["x"] = p.capacity, p.ordered && !faulty
	lifetime, timeout := ttl, heartbeatTimeout
	if !faulty { // on a busy machine a waiter or a grant that is late must not lose its place
		lifetime, timeout = 10*ttl, 10*heartbeatTimeout
	}
	running, stop := context.WithTimeout(context.Background(), 3*time.Second)
	defer stop()
	var nodes []*node
	all := contenders{history: h, seed: seed, faulty: faulty}
	for range 4 {
		n, err := newNode(s.Addr, timeout)
		if err != nil {
			t.Fatal(err)
		}
		defer n.close()
		nodes = append(nodes, n)
		uses, err := p.uses(n.Keeper, "x", lifetime)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range uses {
			all.contend(running, n, u)
		}
	}
	if faulty {
		breakConnections(running, rand.New(rand.NewPCG(seed, 99)), nodes, s.Client())
	}
	<-running.Done()
	for _, n := range nodes {
		n.net.Restore()
	}
	all.workers.Wait()
	h.mustBeValid(t)
	queued := 0
	for _, s := range h.spans {
		if s.Queued > 0 {
			queued++
		}
	}
	t.Logf("%d leases released, %d lost, %d waits ended; %d had been queued", all.given, all.lost, all.gaveUp, queued)
	if all.given < 20 || queued < 10 {
		t.Errorf("%d grants, %d after a wait: too few", all.given, queued)
	}
}

// contenders is the contenders for the lock x, and their results.
type contenders struct {
	*history
	seed    uint64
	faulty  bool // faults are injected
	workers sync.WaitGroup

	mu                  sync.Mutex // guards what follows
	many                uint64
	given, lost, gaveUp int
}

// contend uses the lock repeatedly until the context ends.
func (c *contenders) contend(running context.Context, n *node, u use) {
	c.many++
	r := rand.New(rand.NewPCG(c.seed, c.many))
	c.workers.Go(func() {
		for running.Err() == nil {
			ctx, cancel := running, context.CancelFunc(func() {})
			if r.IntN(8) == 0 {
				ctx, cancel = context.WithTimeout(running, time.Duration(r.IntN(int(20*time.Millisecond))))
			}
			hold := time.Duration(r.IntN(int(4 * time.Millisecond)))
			if c.faulty && r.IntN(100) == 0 {
				hold = ttl
			}
			x, err := n.work(ctx, "x", u, hold, nil)
			cancel()
			if x.Fence > 0 {
				c.add(x)
			}
			c.mu.Lock()
			switch {
			case err == nil:
				c.given++
			case errors.Is(err, lockkeeper.ErrLost):
				c.lost++
			default:
				c.gaveUp++
			}
			c.mu.Unlock()
		}
	})
}

// TestRedlockLinearizability does the same with a lock on three servers, one of which at a time loses its
// connections or freezes.
func TestRedlockLinearizability(t *testing.T) {
	t.Parallel()
	for _, faulty := range []bool{false, true} {
		t.Run(fmt.Sprintf("faults=%t", faulty), func(t *testing.T) {
			t.Parallel()
			majority(t, faulty)
		})
	}
}

func majority(t *testing.T, faulty bool) {
	seed := rand.Uint64()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	const many = 3
	servers := make([]*redistest.Server, many)
	for i := range servers {
		servers[i] = redistest.Start(t)
	}
	h := newHistory()
	h.capacity["x"] = 1
	running, stop := context.WithTimeout(context.Background(), 3*time.Second)
	defer stop()
	at := make([][]*node, many) // by server
	all := contenders{history: h, seed: seed, faulty: faulty}
	for range 4 {
		var keepers []*lockkeeper.Keeper
		for i, s := range servers {
			n, err := newNode(s.Addr, heartbeatTimeout)
			if err != nil {
				t.Fatal(err)
			}
			defer n.close()
			at[i] = append(at[i], n)
			keepers = append(keepers, n.Keeper)
		}
		l, err := redlock.New(keepers, "x", &redlock.Options{TTL: ttl, MaxRetryDelay: 20 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			all.contend(running, at[0][len(at[0])-1], use{weight: 1, acquire: l.Lock})
		}
	}
	if faulty {
		r := rand.New(rand.NewPCG(seed, 0))
		for running.Err() == nil {
			i := r.IntN(many)
			if r.IntN(4) == 0 {
				servers[i].Freeze()
				time.Sleep(time.Duration(r.IntN(int(ttl))))
				servers[i].Thaw()
				continue
			}
			short, cancel := context.WithTimeout(running, 100*time.Millisecond)
			breakConnections(short, r, at[i], servers[i].Client())
			cancel()
		}
	}
	<-running.Done()
	for _, nodes := range at {
		for _, n := range nodes {
			n.net.Restore()
		}
	}
	all.workers.Wait()
	h.mustBeValid(t)
	t.Logf("%d leases released, %d lost, %d waits ended", all.given, all.lost, all.gaveUp)
	if all.given < 20 {
		t.Errorf("%d grants: too few", all.given)
	}
}

// breakConnections injects faults into the nodes' connections, one after another, until the context ends.
func breakConnections(ctx context.Context, r *rand.Rand, nodes []*node, admin *redis.Client) {
	for ctx.Err() == nil {
		n := nodes[r.IntN(len(nodes))]
		switch r.IntN(8) {
		case 0:
			n.net.Cut()
		case 1:
			n.net.CutSubscriptions()
		case 2:
			n.net.BlackholeSubscriptions()
		case 3:
			n.net.Break("evalsha", 1+r.IntN(3), faultnet.CutReply)
		case 4:
			n.net.Break("evalsha", 1+r.IntN(3), faultnet.TruncateReply)
		case 5:
			n.net.Break("evalsha", 1, faultnet.LoseRequest)
		case 6:
			_ = admin.ScriptFlush(ctx).Err()
		case 7: // longer or shorter than a lease lasts
			n.net.Down()
			time.Sleep(time.Duration(r.IntN(int(ttl * 3 / 2))))
			n.net.Restore()
		}
		time.Sleep(time.Duration(r.IntN(int(30 * time.Millisecond))))
	}
}

// naive is an incorrect lock.
type naive struct {
	t   *testing.T
	rdb *redis.Client
	h   *history
}

type naiveLease struct {
	fence    uint64
	deadline time.Time
	release  func()
}

func (l *naiveLease) Fence() uint64       { return l.fence }
func (l *naiveLease) Deadline() time.Time { return l.deadline }
func (l *naiveLease) Release(context.Context) error {
	l.release()
	return nil
}

func (n *naive) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// held is a span and its lease.
type held struct {
	span
	lease *naiveLease
}

// took records a grant that was requested at this time.
func (n *naive) took(called int64, weight int, lifetime time.Duration, release func()) *held {
	n.t.Helper()
	fence, err := n.rdb.Incr(context.Background(), "fence").Result()
	n.must(err)
	return &held{
		span{Name: "x", Weight: weight, Fence: uint64(fence), Called: called, Granted: now()},
		&naiveLease{uint64(fence), time.Now().Add(lifetime), release},
	}
}

// lock is SET NX. Its release does not check the owner.
func (n *naive) lock(lifetime time.Duration) *held {
	n.t.Helper()
	called := now()
	for { // an earlier lease must expire first
		ok, err := n.rdb.SetNX(context.Background(), "x", "token", lifetime).Result()
		n.must(err)
		if ok {
			return n.took(called, 1, lifetime, func() { n.must(n.rdb.Del(context.Background(), "x").Err()) })
		}
		time.Sleep(time.Millisecond)
	}
}

func (n *naive) end(all ...*held) {
	n.t.Helper()
	for _, s := range all {
		s.ends(s.lease)
		n.must(s.span.end(context.Background(), s.lease))
		n.h.add(s.span)
	}
}

// TestCheckersDetectBrokenLocks runs the checkers on histories that violate each property.
func TestCheckersDetectBrokenLocks(t *testing.T) {
	s := redistest.Start(t)
	for _, c := range []struct {
		what     string
		capacity int
		ordered  bool
		linear   bool // fences rise and exclusion holds: only the order is wrong
		use      func(n *naive)
	}{
		{"mutex_release_without_token_check", 1, false, false, func(n *naive) {
			a := n.lock(30 * time.Millisecond)
			b := n.lock(time.Minute) // after a's lease has expired
			n.end(a)                 // which deletes b's lease
			n.end(n.lock(time.Minute), b)
		}},
		{"mutex_lease_valid_for_too_long", 1, false, false, func(n *naive) {
			a := n.lock(30 * time.Millisecond)
			a.lease.deadline = time.Now().Add(time.Minute)
			n.end(n.lock(time.Minute), a)
		}},
		{"fair_fences_per_process", 1, true, false, func(n *naive) {
			n.end(n.lock(time.Minute))
			n.end(n.lock(time.Minute))
			n.must(n.rdb.Del(context.Background(), "fence").Err())
			n.end(n.lock(time.Minute))
		}},
		{"fair_newcomer_overtakes_waiter", 1, true, true, func(n *naive) {
			a := n.lock(time.Minute)
			called := now()
			queued := now() // b was refused and will ask again
			n.end(a)
			n.end(n.lock(time.Minute))
			b := n.lock(time.Minute)
			b.Called, b.Queued = called, queued
			n.end(b)
		}},
		{"rwlock_reader_ignores_writer", readers, false, false, func(n *naive) {
			writer := n.lock(time.Minute)
			writer.Weight = readers
			reader := n.took(now(), 1, time.Minute, func() {})
			n.end(reader, writer)
		}},
		{"semaphore_permit_released_twice", 2, false, false, func(n *naive) {
			ctx := context.Background()
			n.must(n.rdb.Set(ctx, "free", 2, 0).Err())
			take := func() *held {
				called := now()
				left, err := n.rdb.Decr(ctx, "free").Result()
				n.must(err)
				if left < 0 {
					t.Fatal("there was no permit")
				}
				return n.took(called, 1, time.Minute, func() { n.must(n.rdb.Incr(ctx, "free").Err()) })
			}
			a, b := take(), take()
			n.end(a)
			a.lease.release()
			n.end(take(), take(), b)
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := &naive{t, s.Client(), newHistory()}
			n.must(n.rdb.FlushAll(context.Background()).Err())
			n.h.capacity["x"], n.h.ordered["x"] = c.capacity, c.ordered
			c.use(n)
			wrong := n.h.check()
			if len(wrong) == 0 {
				t.Error("the sweep found no violation")
			}
			t.Log(wrong)
			want := porcupine.Illegal
			if c.linear {
				want = porcupine.Ok
			}
			if got := n.h.linearizable(10 * time.Second); got != want {
				t.Errorf("linearizable: %v, want %v", got, want)
			}
		})
	}
}
