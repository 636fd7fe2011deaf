package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
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
	for _, faulty := range []bool{false, true} {
		for _, p := range primitives {
			t.Run(fmt.Sprintf("%s/faults=%t", p.kind, faulty), func(t *testing.T) {
				t.Parallel()
				linear(t, p, faulty)
			})
		}
		// On three servers, one of which at a time loses its connections or freezes.
		t.Run(fmt.Sprintf("redlock/faults=%t", faulty), func(t *testing.T) {
			t.Parallel()
			majority(t, faulty)
		})
	}
}

func linear(t *testing.T, p primitive, faulty bool) {
	all := newContenders(t, faulty)
	all.capacity["x"], all.ordered["x"] = p.capacity, p.ordered && !faulty
	s := redistest.Start(t)
	lifetime, timeout := ttl, heartbeatTimeout
	if !faulty { // on a busy machine a waiter or a grant that is late must not lose its place
		lifetime, timeout = 10*ttl, 10*heartbeatTimeout
	}
	var nodes []*node
	for range 4 {
		n := all.join(t, s, timeout)
		nodes = append(nodes, n)
		for _, u := range must.Get(p.uses(n.Keeper, "x", lifetime))(t) {
			all.contend(n, u)
		}
	}
	if faulty {
		breakConnections(all.running, all.faults, nodes, s.Client())
	}
	all.end(t)
	queued := all.count(func(s span) bool { return s.Queued > 0 })
	check.That(t, queued >= 10, "%d grants after a wait: too few", queued)
}

// contenders are the users of the lock x for three seconds, and their results.
type contenders struct {
	*history
	faulty  bool // faults are injected
	seed    uint64
	faults  *rand.Rand
	running context.Context
	nodes   []*node
	workers sync.WaitGroup
	many    uint64
}

func newContenders(t *testing.T, faulty bool) *contenders {
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed) // of the faults and the pauses; timing differs
		}
	})
	return &contenders{
		history: newHistory(), faulty: faulty, seed: seed, faults: rand.New(rand.NewPCG(seed, 0)), running: must.Within(t, 3*time.Second),
	}
}

func (c *contenders) join(t *testing.T, s *redistest.Server, timeout time.Duration) *node {
	t.Helper()
	n := must.Get(newNode(s.Addr, timeout))(t)
	t.Cleanup(n.close)
	c.nodes = append(c.nodes, n)
	return n
}

// end waits until the time has passed, restores the network, and checks the history.
func (c *contenders) end(t *testing.T) {
	t.Helper()
	<-c.running.Done()
	for _, n := range c.nodes {
		n.net.Restore()
	}
	c.workers.Wait()
	c.mustBeValid(t)
	released := c.count(func(s span) bool { return s.Freed > 0 })
	check.That(t, released >= 20, "%d grants: too few", released)
}

func (c *contenders) contend(n *node, u use) {
	c.many++
	r := rand.New(rand.NewPCG(c.seed, c.many))
	c.workers.Go(func() {
		for c.running.Err() == nil {
			ctx, cancel := c.running, context.CancelFunc(func() {})
			if r.IntN(8) == 0 {
				ctx, cancel = context.WithTimeout(c.running, time.Duration(r.IntN(int(20*time.Millisecond))))
			}
			hold := time.Duration(r.IntN(int(4 * time.Millisecond)))
			if c.faulty && r.IntN(100) == 0 {
				hold = ttl
			}
			x, _ := n.work(ctx, "x", u, hold, nil)
			cancel()
			if x.Fence > 0 {
				c.add(x)
			}
		}
	})
}

func majority(t *testing.T, faulty bool) {
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t), redistest.Start(t)}
	all := newContenders(t, faulty)
	all.capacity["x"] = 1
	at := make([][]*node, len(servers)) // by server
	for range 4 {
		var keepers []*lockkeeper.Keeper
		for i, s := range servers {
			n := all.join(t, s, heartbeatTimeout)
			at[i] = append(at[i], n)
			keepers = append(keepers, n.Keeper)
		}
		l := must.Get(redlock.New(keepers, "x", &redlock.Options{TTL: ttl, MaxRetryDelay: 20 * time.Millisecond}))(t)
		for range 2 {
			all.contend(at[0][len(at[0])-1], use{weight: 1, acquire: l.Lock})
		}
	}
	for faulty && all.running.Err() == nil {
		i := all.faults.IntN(len(servers))
		if all.faults.IntN(4) == 0 {
			servers[i].Freeze()
			time.Sleep(time.Duration(all.faults.IntN(int(ttl))))
			servers[i].Thaw()
			continue
		}
		short, cancel := context.WithTimeout(all.running, 100*time.Millisecond)
		breakConnections(short, all.faults, at[i], servers[i].Client())
		cancel()
	}
	all.end(t)
}

// breakConnections injects faults into the nodes' connections, one after another, until the context ends.
func breakConnections(ctx context.Context, r *rand.Rand, nodes []*node, admin redistest.Client) {
	for ctx.Err() == nil {
		n := nodes[r.IntN(len(nodes))]
		faults := []func(){
			n.net.Cut, n.net.CutSubscriptions, n.net.BlackholeSubscriptions,
			func() { n.net.Break("evalsha", 1+r.IntN(3), faultnet.CutReply) },
			func() { n.net.Break("evalsha", 1+r.IntN(3), faultnet.TruncateReply) },
			func() { n.net.Break("evalsha", 1, faultnet.LoseRequest) },
			func() { _ = admin.ScriptFlush(ctx).Err() },
			func() { // longer or shorter than a lease lasts
				n.net.Down()
				time.Sleep(time.Duration(r.IntN(int(ttl * 3 / 2))))
				n.net.Restore()
			},
		}
		faults[r.IntN(len(faults))]()
		time.Sleep(time.Duration(r.IntN(int(30 * time.Millisecond))))
	}
}
