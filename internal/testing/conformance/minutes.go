package conformance

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// overMinutes draws what processes do with names of a Cluster for many minutes, in virtual time: names are held, waited for, and idle, in turn;
// slots move, and connections break. Who waits is subscribed, and woken by a message; what is idle is not subscribed for long.
func overMinutes(t *testing.T, p Primitive) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			embedded.RunCluster(t, 3, func(c *embedded.Cluster) {
				m := &minutes{T: c.T, cluster: c, draw: rand.New(rand.NewPCG(seed, 0)), names: make([]sharedName, 6)}
				for range 2 {
					m.start(p)
				}
				for range 100 {
					m.step()
				}
				m.end()
			})
		})
	}
}

const (
	subscriptionIdles = time.Minute      // how long a name stays subscribed that nobody waits for
	settled           = time.Second      // how much longer at most
	resubscribed      = 2 * time.Second  // how long it may take to subscribe after a fault
	trimmed           = 10 * time.Second // how long a subscription may stay that nothing needs, beside another one
)

// minutes is the state of a drawn run.
type minutes struct {
	*testing.T
	cluster *embedded.Cluster
	draw    *rand.Rand
	users   []*user
	names   []sharedName
	fault   time.Time // the last one
}

// user is a process.
type user struct {
	*lockkeeper.Keeper
	net   *faultnet.Net
	locks []Locker
}

// sharedName is a name that the processes lock.
type sharedName struct {
	holder  *lockkeeper.Lease // nil: nobody
	of      int               // the process that holds it
	waiters []*waiter
	uses    [2]use
}

// use is what a process has done with a name.
type use struct {
	requests int         // of waiters and holders now
	ended    []time.Time // when others have ended
	waiters  int
	began    time.Time // when it last began to wait
	until    time.Time // when it last waited
}

type waiter struct {
	of     int // the process
	cancel context.CancelFunc
	result chan result
}

func (m *minutes) name(i int) string { return fmt.Sprint("n", i) }

func (m *minutes) start(p Primitive) {
	u := &user{net: m.cluster.Network()}
	rdb := m.cluster.Client(u.net)
	u.Keeper = newKeeper(m, rdb, lockkeeper.Options{HeartbeatInterval: rareHeartbeat, HeartbeatTimeout: 3 * rareHeartbeat})
	m.Cleanup(func() { must.Report(m, u.Close()); must.Report(m, rdb.Close()) })
	for i := range m.names {
		u.locks = append(u.locks, must.Get(p.New(u.Keeper, m.name(i), Options{TTL: 10 * time.Minute}))(m))
	}
	m.users = append(m.users, u)
}

// step lets some time pass, and then something happen.
func (m *minutes) step() {
	time.Sleep([]time.Duration{100 * time.Millisecond, 3 * time.Second, 20 * time.Second, 50 * time.Second, 2 * time.Minute}[m.draw.IntN(5)])
	m.checkSubscriptions()
	i := m.draw.IntN(len(m.names))
	n := &m.names[i]
	switch k := m.draw.IntN(12); {
	case k == 0:
		m.fault = time.Now()
		m.cluster.MoveSlot("{lock:" + m.name(i) + "}")
	case k == 1:
		m.fault = time.Now()
		m.users[m.draw.IntN(2)].net.CutSubscriptions()
	case n.holder == nil || k < 6 && len(n.waiters) < 3:
		m.lock(i, m.draw.IntN(2))
	case k < 7 && len(n.waiters) > 0:
		m.giveUp(n)
	default:
		m.release(n)
	}
	synctest.Wait()
	m.checkSubscriptions()
}

// lock lets a process hold the name, or wait for it.
func (m *minutes) lock(i, of int) {
	n, l := &m.names[i], m.users[of].locks[i]
	if n.holder == nil {
		n.holder, n.of = must.Get(l.Lock(m.Context()))(m), of
		n.uses[of].requests++
		return
	}
	ctx, cancel := context.WithCancel(m.Context())
	w := &waiter{of: of, cancel: cancel, result: make(chan result, 1)}
	go func() {
		g, err := leased(l.Lock(ctx))
		w.result <- result{g, err, time.Now()}
	}()
	n.waiters = append(n.waiters, w)
	u := &n.uses[of]
	if u.requests++; u.waiters == 0 {
		u.began = time.Now()
	}
	u.waiters++
}

// leaves removes a waiter.
func (n *sharedName) leaves(k int) {
	w := n.waiters[k]
	n.waiters = append(n.waiters[:k], n.waiters[k+1:]...)
	n.uses[w.of].waiters--
	n.uses[w.of].until = time.Now()
}

// end notes that a request or a lease of the process has ended.
func (u *use) end() {
	u.requests--
	u.ended = append(u.ended, time.Now())
}

func (m *minutes) giveUp(n *sharedName) {
	k := m.draw.IntN(len(n.waiters))
	w := n.waiters[k]
	w.cancel()
	check.Is(m, (<-w.result).err, lockkeeper.ErrNotAcquired, "a waiter gives up")
	n.leaves(k)
	n.uses[w.of].end()
}

// release ends the lease of a name. One of its waiters gets it by a message, unless there was a fault just now: then by its next heartbeat.
func (m *minutes) release(n *sharedName) {
	must.Report(m, n.holder.Release(m.Context()))
	n.holder = nil
	n.uses[n.of].end()
	if len(n.waiters) == 0 {
		return
	}
	synctest.Wait()
	if !n.granted(m) && time.Since(m.fault) < resubscribed {
		time.Sleep(rareHeartbeat + time.Second)
		n.granted(m)
	}
	must.That(m, n.holder != nil, "nobody was woken, %v after the last fault", time.Since(m.fault))
}

// granted makes the waiter that was granted the name its holder, and reports whether there is one.
func (n *sharedName) granted(m *minutes) bool {
	for k, w := range n.waiters {
		select {
		case r := <-w.result:
			check.Is(m, r.err, nil, "a waiter")
			n.holder, n.of = r.lease, w.of
			w.cancel()
			n.leaves(k)
			return true
		default:
		}
	}
	return false
}

// checkSubscriptions compares the subscriptions at the server with who waits, and who has waited lately.
func (m *minutes) checkSubscriptions() {
	for i := range m.names {
		for of, u := range m.users {
			use := &m.names[i].uses[of]
			got := len(m.cluster.Subscriptions("{lock:" + m.name(i) + "}:wake:" + u.ID()))
			least, most := use.subscriptions(m.fault)
			must.That(m, got >= least && got <= most, "%s: process %d has %d subscriptions, want %d to %d; %d wait, the last one until %v ago; a fault %v ago",
				m.name(i), of, got, least, most, use.waiters, time.Since(use.until), time.Since(m.fault))
		}
	}
}

// subscriptions returns how many subscriptions the process must have, and may have. There is one, while it waits, and for a while afterwards;
// and one for each request or lease that has named an earlier one, which a fault has ended.
func (u *use) subscriptions(fault time.Time) (least, most int) {
	unused := time.Since(u.until)
	switch {
	case u.waiters > 0 || unused < subscriptionIdles:
		least, most = 1, 1
	case unused <= subscriptionIdles+settled:
		most = 1
	default:
		return 0, 0
	}
	if fault.IsZero() {
		return least, most
	}
	if time.Since(fault) < resubscribed || time.Since(u.began) < resubscribed {
		least = 0 // a process learns that a slot has moved when it next uses it
	}
	if time.Since(fault) < trimmed {
		return least, math.MaxInt
	}
	most += u.requests
	for _, at := range u.ended {
		if time.Since(at) < trimmed {
			most++
		}
	}
	return least, most
}

// end releases everything. A while later nothing is subscribed.
func (m *minutes) end() {
	for i := range m.names {
		for n := &m.names[i]; n.holder != nil; {
			m.release(n)
		}
	}
	time.Sleep(subscriptionIdles + settled + resubscribed)
	synctest.Wait()
	left := m.cluster.Subscriptions("")
	check.That(m, len(left) == 0, "subscriptions left: %v", left)
}
