package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

// deploymentClient is a keeper in a deployment, with one use of every primitive under the same name.
type deploymentClient struct {
	*testing.T
	uses map[string]use

	mu      sync.Mutex // guards granted
	granted map[string]int64
}

func join(t *testing.T, rdb redis.UniversalClient, name string, lifetime time.Duration) *deploymentClient {
	t.Helper()
	k := newKeeper(t, rdb)
	p := &deploymentClient{T: t, uses: map[string]use{}, granted: map[string]int64{}}
	for _, kind := range primitives {
		uses := must.Get(kind.uses(k, name, lifetime))(t)
		p.uses[kind.kind] = uses[0]
		if kind.kind == "semaphore" {
			p.uses[kind.kind] = uses[len(uses)-1] // all permits
		}
	}
	return p
}

// all acquires every primitive, and records when. A failure is an error of the test and a nil lease.
func (p *deploymentClient) all(ctx context.Context) map[string]*lockkeeper.Lease {
	p.Helper()
	leases := map[string]*lockkeeper.Lease{}
	var each sync.WaitGroup
	for kind, u := range p.uses {
		each.Go(func() {
			lease, err := u.acquire(ctx)
			if err != nil {
				p.Errorf("%s: %v", kind, err)
				return
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			leases[kind], p.granted[kind] = lease, now()
		})
	}
	each.Wait()
	return leases
}

func (p *deploymentClient) release(leases map[string]*lockkeeper.Lease) {
	p.Helper()
	for kind, l := range leases {
		err := l.Release(context.Background())
		check.Is(p, err, nil, "%s", kind)
	}
}

func lost(t *testing.T, leases map[string]*lockkeeper.Lease, within time.Duration) {
	t.Helper()
	late := time.Now().Add(within)
	for kind, l := range leases {
		must.Receive(t, l.Done(), time.Until(late), kind+": the report of a loss")
		check.Is(t, l.Err(), lockkeeper.ErrLost, "%s", kind)
		err := l.Release(context.Background())
		check.Is(t, err, lockkeeper.ErrLost, "%s: a lost lease was released", kind)
	}
}

func checkRises(t *testing.T, kind string, first, second *lockkeeper.Lease) {
	t.Helper()
	check.That(t, second.Fence() > first.Fence(), "%s: fence %d after %d", kind, second.Fence(), first.Fence())
}

func awaitWaiter(ctx context.Context, t *testing.T, rdb redis.UniversalClient, kind, name string) {
	t.Helper()
	for rdb.ZCount(ctx, "{lock:"+name+"}:"+kind+":queue", "-inf", protocol.BehindWaiters).Val() != 1 {
		must.That(t, ctx.Err() == nil, "nobody waits")
		time.Sleep(5 * time.Millisecond)
	}
}

// TestFailoverLosesGrants promotes a replica that does not have the leases. Then there are two holders, which no
// lock on asynchronous replication can prevent. The second has the larger fence, and the first learns of the loss by
// its next renewal.
func TestFailoverLosesGrants(t *testing.T) {
	t.Parallel()
	const lifetime = 15 * time.Second
	// lose acquires all locks on a primary whose replica is disconnected, and promotes the replica.
	lose := func(t *testing.T, client func() redis.UniversalClient, name string, primary, replica *redistest.Server) {
		ctx := must.Within(t, time.Minute)
		a, b := join(t, client(), name, lifetime), join(t, client(), name, lifetime)
		a.release(a.all(ctx))
		replica.Freeze()
		must.OK(t, primary.Client().Do(ctx, "client", "kill", "type", "replica").Err())
		first := a.all(ctx)
		primary.Kill()
		replica.Thaw()
		second := b.all(ctx)
		for kind, l := range second {
			checkRises(t, kind, first[kind], l)
			check.Is(t, l.Err(), nil, "%s", kind)
		}
		lost(t, first, lifetime)
		for kind, l := range first {
			check.That(t, time.Until(l.Deadline()) > 0, "%s: the loss was reported by the deadline, not by a renewal", kind)
		}
		b.release(second)
	}
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartSentinel(t, 1)
		lose(t, func() redis.UniversalClient { return s.Client() }, "x", s.Primary, s.Replicas[0])
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, 3, 1)
		lose(t, func() redis.UniversalClient { return c.Client() }, nameOnFirstPrimary(t, c), c.Primaries[0], c.Replicas[0][0])
	})
}

func nameOnFirstPrimary(t *testing.T, c *redistest.Cluster) string {
	t.Helper()
	for i := range 100 {
		name := fmt.Sprintf("n%d", i)
		slot := must.Get(c.Primaries[0].Client().ClusterKeySlot(context.Background(), "lock:"+name).Result())(t)
		if slot < 16384/int64(len(c.Primaries)) {
			return name
		}
	}
	t.Fatal("no name")
	return ""
}

// TestOldPrimaryReturns freezes a primary that is then replaced without losing any grant. After it is thawed, it
// acts as a primary for some seconds. Clients of Sentinel never see that. A client that is connected to it directly
// can acquire a lock there that is held elsewhere, and learns of the loss as soon as the old primary is demoted.
func TestOldPrimaryReturns(t *testing.T) {
	t.Parallel()
	ctx := must.Within(t, time.Minute)
	s := redistest.StartSentinel(t, 1)
	const lifetime = 3 * time.Second
	a, b := join(t, s.Client(), "x", lifetime), join(t, s.Client(), "x", time.Minute)
	first := a.all(ctx)
	caught := redistest.Connect(s.Primary)
	s.Replicas[0].Await("1", func(context.Context, redistest.Client) (string, error) {
		_ = caught.Set(ctx, "last", 1, 0).Err()
		return s.Replicas[0].Client().Get(ctx, "last").Result() // and therefore everything before
	})
	s.Primary.Freeze()
	got := make(chan map[string]*lockkeeper.Lease, 1)
	go func() { got <- b.all(ctx) }()
	ends := map[string]time.Time{}
	for kind, l := range first {
		ends[kind] = l.Deadline()
	}
	believed := map[string]int64{}
	for kind, l := range first { // until the new primary has replied to a renewal, or the lease has expired
		for l.Err() == nil && !l.Deadline().After(ends[kind]) {
			select {
			case <-l.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
		x := span{}
		x.ends(l)
		believed[kind] = x.Until
		if l.Err() == nil {
			check.Is(t, l.Release(ctx), nil, "%s", kind)
		}
	}
	second := <-got
	for kind, l := range second {
		checkRises(t, kind, first[kind], l)
		check.That(t, b.granted[kind] >= believed[kind],
			"%s: it was granted to another %v before its holder considered it lost", kind, time.Duration(believed[kind]-b.granted[kind]))
	}
	s.Primary.Thaw()
	old := join(t, caught, "x", lifetime)
	short, cancel2 := context.WithTimeout(ctx, 2*lifetime)
	defer cancel2()
	var split sync.WaitGroup
	for kind, u := range old.uses {
		split.Go(func() {
			lease, err := u.acquire(short)
			if err != nil {
				t.Logf("%s: the old primary was demoted before it granted anything: %v", kind, err)
				return
			}
			lost(t, map[string]*lockkeeper.Lease{kind: lease}, 30*time.Second)
		})
	}
	split.Wait()
	for kind, l := range second {
		check.Is(t, l.Err(), nil, "%s: the holder at the new primary has lost it", kind)
	}
	b.release(second)
}

// load uses all primitives, by several keepers with clients of their own, until stop is called and a hundred more
// leases were granted. No call may fail: nothing that is done to the servers meanwhile loses data.
func load(t *testing.T, client func() redis.UniversalClient, names int) (stop func()) {
	t.Helper()
	h := newHistory()
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	for range 3 {
		rdb := client()
		n := &node{Keeper: newKeeper(t, rdb), queued: map[string]int64{}}
		for _, p := range primitives {
			for i := range names {
				name := fmt.Sprintf("%s-%d", p.kind, i)
				h.capacity[name] = p.capacity
				uses := must.Get(p.uses(n.Keeper, name, 20*time.Second))(t)
				u := uses[rand.IntN(len(uses))]
				workers.Go(func() {
					for ctx.Err() == nil {
						// Not ctx: a cancelled wait is no success.
						x, err := n.work(context.Background(), name, u, time.Duration(rand.IntN(int(5*time.Millisecond))), nil)
						if x.Fence > 0 {
							h.add(x)
						}
						check.Is(t, err, nil, "%s", name)
					}
				})
			}
		}
	}
	t.Cleanup(func() { // before the keepers are closed, also if the test has failed
		cancel()
		workers.Wait()
	})
	return func() {
		t.Helper()
		all := func(span) bool { return true }
		before := h.count(all)
		for end := time.Now().Add(30 * time.Second); h.count(all) < before+100 && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		check.That(t, h.count(all) >= before+100, "only %d grants within 30 s", h.count(all)-before)
		cancel()
		workers.Wait()
		h.mustBeValid(t)
	}
}

// disableAutoFailover keeps a cluster on a busy machine from failing over by itself.
func disableAutoFailover(t *testing.T, c *redistest.Cluster) {
	t.Helper()
	nodes := c.Primaries
	for _, list := range c.Replicas {
		nodes = append(nodes, list...)
	}
	for _, s := range nodes {
		must.OK(t, s.Client().ConfigSet(context.Background(), "cluster-node-timeout", "15000").Err())
	}
}

// TestPlannedFailover promotes replicas in agreement with their primaries. No call fails.
func TestPlannedFailover(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 1)
	disableAutoFailover(t, c)
	stop := load(t, func() redis.UniversalClient { return c.Client() }, 3)
	for _, list := range c.Replicas {
		r := list[0]
		var asked time.Time
		r.Await("master", func(ctx context.Context, c redistest.Client) (string, error) {
			v, err := c.Do(ctx, "role").Slice()
			if err != nil {
				return "", err
			}
			// A replica gives a planned failover up after 5 s, which a busy machine may need.
			if role := fmt.Sprint(v[0]); role == "master" || time.Since(asked) < 6*time.Second {
				return role, nil
			}
			asked = time.Now()
			return "", c.ClusterFailover(ctx).Err()
		})
	}
	stop()
}

// TestSlotMigrationUnderLoad migrates slots to another primary and back while their locks are in use.
func TestSlotMigrationUnderLoad(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	stop := load(t, func() redis.UniversalClient { return c.Client() }, 1)
	for range 3 {
		for _, p := range primitives {
			c.MoveSlot("lock:" + p.kind + "-0")
		}
	}
	stop()
}

// TestHalfMigratedSlot leaves some keys of a lock on the old primary and some on the new one. A request with more
// than one key waits until the migration ends, or its context; a lease, which is in one key, is renewed meanwhile.
func TestHalfMigratedSlot(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	const lifetime = 4 * time.Second
	list := primitives[:1] // each takes a lifetime, one after the other, and waits for the same
	if redistest.All() {
		list = primitives
	}
	for _, p := range list {
		t.Run(p.kind, func(t *testing.T) {
			ctx := must.Within(t, time.Minute)
			name := "half-" + p.kind
			a, b := join(t, c.Client(), name, lifetime).uses[p.kind], join(t, c.Client(), name, lifetime).uses[p.kind]
			first := must.Get(a.acquire(ctx))(t)
			var got chan error
			c.MoveSlot("lock:"+name, func() {}, func() {
				renewed := first.Deadline()
				short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
				start := time.Now()
				_, err := b.acquire(short)
				check.That(t, errors.Is(err, context.DeadlineExceeded) && time.Since(start) <= lifetime,
					"after %v: %v", time.Since(start), err)
				got = inBackground(func() error {
					second, err := b.acquire(ctx)
					if err != nil {
						return err
					}
					checkRises(t, p.kind, first, second)
					return second.Release(ctx)
				})
				time.Sleep(time.Until(renewed))
				check.That(t, first.Err() == nil && first.Deadline().After(renewed), "the lease was not renewed: %v", first.Err())
			})
			must.Report(t, first.Release(ctx))
			must.Report(t, <-got)
		})
	}
}

// TestHandoffDuringSlotMigration releases a lock with a waiter while its slot has begun to migrate. The server stops
// the script in the middle, because the key that it has deleted is not its own any more. No call fails.
func TestHandoffDuringSlotMigration(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	for _, p := range primitives {
		t.Run(p.kind, func(t *testing.T) {
			ctx := must.Within(t, time.Minute)
			name := "moving-" + p.kind
			a, b := join(t, c.Client(), name, time.Minute).uses[p.kind], join(t, c.Client(), name, time.Minute).uses[p.kind]
			first := must.Get(a.acquire(ctx))(t)
			got := inBackground(func() error {
				second, err := b.acquire(ctx)
				if err == nil {
					err = second.Release(ctx)
				}
				return err
			})
			awaitWaiter(ctx, t, c.Client(), p.kind, name)
			c.MoveSlot("lock:"+name, func() {
				start := time.Now()
				short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
				err := first.Release(short)
				check.That(t, err == nil || errors.Is(err, context.DeadlineExceeded), "after %v: %v", time.Since(start), err)
			})
			must.Report(t, <-got)
		})
	}
}
