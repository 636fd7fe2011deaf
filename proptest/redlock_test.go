package proptest

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

// The promises of a lock on the majority of several servers:
//
//   - at most one holder considers its lease held at a time
//   - every lease has a larger fence than all that were returned before it was requested
//   - while no more than a minority of the servers is down, every request is granted
//   - also after all of them were slow or frozen for longer than a ttl; and while a majority is up, and has been
//     for a ttl and the client's timeout, the lock is not free for longer than that while a request waits
//   - a release returns when the lease would have expired and all replies have come or timed out
//   - a lease that is held is not lost while a majority of the servers can be reached
//   - in the end no key of the lock is left on any server
//
// The servers' clocks differ by up to an hour, so fences rise only because a majority is raised to the largest.
// Servers crash and keep their data, are disconnected from some processes or all, or reply late, from at once to
// several ttls; never more than a minority at a time, and the next only after recovery from the last fault. But at
// times all are slow or disconnected; then leases can be lost, and calls take as long.

// quorum is a schedule of a redlock: a world with several servers.
type quorum struct {
	*world
	servers []*node
	clients []*client
	limit   time.Duration // ServerTimeout
	stop    chan struct{} // closed when the clients should finish
	gone    sync.WaitGroup

	// Guarded by world.mu.
	holding int
	fence   uint64        // the largest returned
	free    time.Time     // since when the lock is free, as far as known here, with a majority up
	weaker  bool          // there may be no majority now
	weak    time.Time     // when there last was none; leases held then may be lost
	slowest time.Duration // the longest round trip
}

// node is a server with a clock of its own.
type node struct {
	mini   *miniredis.Miniredis
	offset time.Duration
}

// client is a process with a keeper for each server.
type client struct {
	q       *quorum
	id      int
	nets    []*faultnet.Net
	keepers []*lockkeeper.Keeper
	rdbs    []*redis.Client
	lock    *redlock.Lock
	told    *reports // of the lock, by the first keeper
}

const (
	quorumTTL = 2 * time.Second
	// quorumSettling is how long leftovers of an attempt or a fault take at most to expire or be released.
	quorumSettling = quorumTTL + time.Second
)

// build draws the servers and the clients.
func (q *quorum) build() {
	w := q.world
	w.timeout = rapid.SampledFrom([]time.Duration{usual.timeout, 7 * time.Second}).Draw(w.r, "timeout")
	q.limit = rapid.SampledFrom([]time.Duration{100 * time.Millisecond, time.Millisecond, quorumTTL / 2}).Draw(w.r, "limit") // two are bounds
	n := rapid.SampledFrom([]int{3, 3, 5}).Draw(w.r, "servers")
	for range n {
		s := &node{mini: miniredis.NewMiniRedis(), offset: time.Duration(rapid.IntRange(-3600, 3600).Draw(w.r, "clock")) * time.Second}
		s.mini.ClockTTL(true)
		if first, err := s.mini.Dial(); err == nil { // creates the command table for a hook
			_ = first.Close()
		}
		s.mini.Server().SetPreHook(func(_ *server.Peer, command string, _ ...string) bool {
			if strings.HasPrefix(command, "EVAL") {
				s.mini.SetTime(time.Now().Add(s.offset))
			}
			return false
		})
		q.servers = append(q.servers, s)
	}
	for i := range rapid.IntRange(2, 4).Draw(w.r, "processes") {
		c := &client{q: q, id: i, told: newReports()}
		q.clients = append(q.clients, c)
		for _, s := range q.servers {
			net := faultnet.New(faultnet.Buffer(func(context.Context, string, string) (net.Conn, error) { return s.mini.Dial() }))
			if q.limit > time.Millisecond {
				net.Delay(time.Duration(rapid.IntRange(0, 8).Draw(w.r, "delay")) * time.Millisecond)
			}
			rdb := redis.NewClient(faultnet.Options(net, q.timeout))
			k, err := lockkeeper.New(rdb, &lockkeeper.Options{
				NoOwner:     true,
				MetadataTTL: idle, Retry: lockkeeper.RetryPolicy{MaxElapsed: -1}, Hooks: c.told.count(lockkeeper.Hooks{}), Logger: w.logger(),
			})
			if err != nil {
				w.r.Fatal(err)
			}
			c.nets, c.keepers, c.rdbs = append(c.nets, net), append(c.keepers, k), append(c.rdbs, rdb)
		}
		c.renew()
	}
}

// renew creates the lock anew, without what it knows of the servers' clocks.
func (c *client) renew() {
	var err error
	c.lock, err = redlock.New(c.keepers, "x", &redlock.Options{TTL: quorumTTL, ServerTimeout: c.q.limit})
	if err != nil {
		c.q.r.Fatal(err)
	}
}

// leave lets the clients finish, and closes them.
func (q *quorum) leave() {
	close(q.stop)
	q.gone.Wait()
	for _, c := range q.clients {
		for _, k := range c.keepers {
			_ = k.Close()
		}
		if why := c.told.problem(); why != "" {
			q.breaks(hooksTell, "process %d: %s", c.id, why)
		}
	}
}

// end tears everything down, wherever the schedule has ended.
func (q *quorum) end() {
	for _, c := range q.clients {
		for _, n := range c.nets {
			n.Restore()
		}
	}
	select {
	case <-q.stop:
	default:
		q.leave()
	}
	for _, c := range q.clients {
		for _, rdb := range c.rdbs {
			_ = rdb.Close()
		}
	}
	for _, s := range q.servers {
		s.mini.Close()
	}
}

// use acquires the lock and holds it for a while. Between a check of the lease and the next promise no time passes
// in which it could be lost.
func (c *client) use(lock *redlock.Lock, hold time.Duration) {
	q := c.q
	q.mu.Lock()
	before := q.fence
	q.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // without order, others may often come first
	defer cancel()
	asked := time.Now()
	lease, err := lock.Lock(ctx)
	q.mu.Lock()
	if wait := min(time.Since(asked), time.Since(q.free)); q.holding == 0 && !q.weaker && wait > quorumSettling+q.timeout {
		q.breaksLocked(live, "process %d has waited for %v while the lock is free", c.id, wait)
	}
	if err != nil {
		q.breaksLocked("every request is granted", "process %d: %v", c.id, err)
		q.mu.Unlock()
		return
	}
	q.holding++
	q.noteLocked("process %d holds, fence %d", c.id, lease.Fence())
	if q.holding != 1 {
		q.breaksLocked("one holder at a time", "%d holders", q.holding)
	}
	if lease.Fence() <= before {
		q.breaksLocked("fences rise", "%d after %d", lease.Fence(), before)
	}
	q.fence = max(q.fence, lease.Fence())
	q.tally["a lease"]++
	q.mu.Unlock()

	timer := time.NewTimer(hold)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-lease.Done():
	}
	q.mu.Lock()
	q.holding--
	if err := lease.Err(); err != nil && !q.weaker && q.weak.Before(asked) {
		q.breaksLocked("a majority keeps the lease", "process %d: %v", c.id, err)
	}
	q.noteLocked("process %d releases", c.id)
	q.mu.Unlock()
	began := time.Now()
	err = lease.Release(context.Background())
	q.mu.Lock()
	defer q.mu.Unlock()
	if errors.Is(err, lockkeeper.ErrLost) && !q.weaker && q.weak.Before(asked) {
		q.breaksLocked("a majority keeps the lease", "process %d, at its release: %v", c.id, err)
	}
	if took := time.Since(began); took > quorumTTL+q.timeout+q.slowest+time.Second {
		q.breaksLocked(live, "the release of process %d took %v", c.id, took)
	}
	q.free = time.Now()
}

// disturb degrades a minority of the servers for a while, or sometimes all, and returns after their recovery.
func (q *quorum) disturb() {
	n := rapid.IntRange(1, len(q.servers)/2).Draw(q.r, "how many")
	kinds := []string{"crashed", "cut off", "hanging", "losing replies", "slow"}
	all := rapid.IntRange(0, 3).Draw(q.r, "all") == 0
	if all {
		n, kinds = len(q.servers), []string{"cut off", "hanging", "slow"}
	}
	var which []int
	for i := range q.servers {
		which = append(which, i)
	}
	which = rapid.Permutation(which).Draw(q.r, "servers away")[:n]
	what := rapid.SampledFrom(kinds).Draw(q.r, "what")
	late := func(what string) time.Duration {
		return time.Duration(rapid.IntRange(0, int(2*quorumTTL/time.Millisecond)).Draw(q.r, what)) * time.Millisecond
	}
	q.mu.Lock()
	q.noteLocked("servers %v are %s", which, what)
	q.tally["servers are "+what]++
	if q.weaker = all; all {
		q.tally["all servers are away"]++
	}
	q.mu.Unlock()
	for _, i := range which {
		for _, c := range q.clients {
			// A server is down for all, or the network is broken for some.
			if what != "crashed" && rapid.Bool().Draw(q.r, "spared") {
				continue
			}
			switch what {
			case "slow":
				out, in := late("requests"), late("replies")
				q.mu.Lock()
				q.slowest = max(q.slowest, out+in)
				q.mu.Unlock()
				c.nets[i].Delay(out)
				c.nets[i].DelayReplies(in)
			case "hanging":
				c.nets[i].Blackhole()
			case "losing replies":
				c.nets[i].Break("eval", 5, rapid.SampledFrom([]faultnet.Fault{
					faultnet.CutReply, faultnet.SwallowReply, faultnet.LoseRequest, faultnet.CutReply | faultnet.Copy,
				}).Draw(q.r, "fault"))
			default:
				c.nets[i].Down()
			}
		}
	}
	time.Sleep(time.Duration(rapid.IntRange(10, 6000).Draw(q.r, "away for")) * time.Millisecond)
	for _, i := range which {
		for _, c := range q.clients {
			c.nets[i].Restore()
			if rapid.Bool().Draw(q.r, "late copies") {
				_ = c.nets[i].Replay()
			}
		}
	}
	// Until the leases there have been requested again, the others are the majority.
	settling := quorumTTL + usual.timeout + time.Second
	if what == "slow" || all {
		settling = quorumTTL + q.timeout + q.slowest + time.Second
	}
	time.Sleep(settling)
	q.mu.Lock()
	if q.weaker {
		q.weaker, q.weak, q.free = false, time.Now(), time.Now()
	}
	q.mu.Unlock()
	q.fail()
}

// TestRedlockSimulation runs one schedule for eight of the others: several servers and polling cost more.
func TestRedlockSimulation(t *testing.T) {
	u := newRun(t)
	checkPart(t, 1.0/8, func(r *rapid.T) {
		u.simulate(r, nil, func(w *world) {
			q := &quorum{world: w, stop: make(chan struct{})}
			defer q.end()
			q.build()
			for _, c := range q.clients {
				hold := time.Duration(rapid.IntRange(0, 20000).Draw(r, "hold")) * time.Millisecond
				pause := time.Duration(rapid.IntRange(50, 2000).Draw(r, "pause")) * time.Millisecond
				anew := rapid.Bool().Draw(r, "knows no clocks")
				lock := c.lock
				q.gone.Go(func() {
					for {
						select {
						case <-q.stop:
							return
						case <-time.After(pause):
						}
						if anew {
							c.renew()
							lock = c.lock
						}
						c.use(lock, hold)
					}
				})
			}
			for range rapid.IntRange(1, 4).Draw(r, "disturbances") {
				q.disturb()
			}
			q.leave()
			for i, s := range q.servers {
				s.mini.SetTime(time.Now().Add(s.offset))
				if owner, err := s.mini.Get("lock:x"); err == nil {
					q.mu.Lock()
					q.breaksLocked("nothing is left", "server %d: %s", i, owner)
					q.mu.Unlock()
				}
			}
			q.fail()
		})
	})
	u.report("a lease", "servers are crashed", "servers are cut off", "servers are hanging", "servers are losing replies",
		"servers are slow", "all servers are away")
}
