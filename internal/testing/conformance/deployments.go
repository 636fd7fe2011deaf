package conformance

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

// deployments runs a primitive on a Redis Cluster, whose slots move, and behind Sentinel.
func deployments(t *testing.T, p Primitive) {
	runParallel(t, map[string]func(*testing.T){
		"cluster": func(t *testing.T) {
			c := redistest.StartCluster(t, 3, 1)
			d := &deployment{t, p, wrapEverySecondClient(func() redis.UniversalClient { return c.Client() })}
			d.handoffs(30)
			d.slotMigrates(c)
		},
		"sentinel": func(t *testing.T) {
			s := redistest.StartSentinel(t, 1)
			d := &deployment{t, p, wrapEverySecondClient(func() redis.UniversalClient { return s.Client() })}
			d.handoffs(5)
		},
		// NewUniversalClient chooses the kind of client by the number of addresses, so one fleet can have both.
		"a cluster of one shard by clients of two kinds": func(t *testing.T) {
			c := redistest.StartCluster(t, 1, 0)
			d := &deployment{t, p, alternate(
				func() redis.UniversalClient { return redistest.Connect(c.Primaries[0]) }, func() redis.UniversalClient { return c.Client() })}
			d.handoffs(5)
		},
		"sentinel by clients of two kinds": func(t *testing.T) {
			s := redistest.StartSentinel(t, 1)
			d := &deployment{t, p, alternate(
				func() redis.UniversalClient { return s.Client() }, func() redis.UniversalClient { return s.ClusterClient() })}
			d.handoffs(5)
		},
	})
}

// alternate returns clients of one kind and of the other in turn.
func alternate(one, other func() redis.UniversalClient) func() redis.UniversalClient {
	var made atomic.Int32
	return func() redis.UniversalClient {
		if made.Add(1)%2 == 0 {
			return other()
		}
		return one()
	}
}

// wrapEverySecondClient wraps every second client, beginning with the first, in a struct, as services do for
// tracing. That must make no difference.
func wrapEverySecondClient(rdb func() redis.UniversalClient) func() redis.UniversalClient {
	var made atomic.Int32
	return func() redis.UniversalClient {
		c := rdb()
		if made.Add(1)%2 == 0 {
			return c
		}
		switch c := c.(type) {
		case *redis.Client:
			return struct{ *redis.Client }{c}
		case *redis.ClusterClient:
			return struct{ *redis.ClusterClient }{c}
		}
		return c
	}
}

type deployment struct {
	*testing.T
	p   Primitive
	rdb func() redis.UniversalClient
}

// With frequentHeartbeat a lost message does not delay a test for long. With rareHeartbeat it delays it beyond any
// limit, on any machine.
const frequentHeartbeat, rareHeartbeat = 2 * time.Second, 20 * time.Second

func (d *deployment) keeper(hooks lockkeeper.Hooks) *lockkeeper.Keeper {
	d.Helper()
	return d.keeperWith(lockkeeper.Options{HeartbeatInterval: frequentHeartbeat, Hooks: hooks})
}

func (d *deployment) keeperWith(o lockkeeper.Options) *lockkeeper.Keeper {
	d.Helper()
	o.Retry.MaxElapsed = 20 * time.Second
	return newKeeper(d, d.rdb(), o)
}

func newKeeper(t testing.TB, rdb redis.UniversalClient, o lockkeeper.Options) *lockkeeper.Keeper {
	t.Helper()
	if o.Logger == nil {
		o.Logger = quiet.Logger(nil)
	}
	k := must.Get(lockkeeper.New(rdb, &o))(t)
	t.Cleanup(func() { _ = k.Close() })
	return k
}

func inBackground(f func() error) chan error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	return ended
}

func lockOnce(ctx context.Context, lock acquire) error {
	lease, err := lock(ctx)
	if err == nil {
		err = lease.Release(ctx)
	}
	return err
}

func (d *deployment) lock(k *lockkeeper.Keeper, name string) Locker {
	d.Helper()
	return must.Get(d.p.New(k, name, Options{TTL: 30 * time.Second}))(d)
}

// handoffs lets keepers contend for names in all slots and checks that every wait is ended by a message.
func (d *deployment) handoffs(names int) {
	d.Helper()
	var received atomic.Int32
	var ks []*lockkeeper.Keeper
	for range 3 {
		hooks := lockkeeper.Hooks{WakeupReceived: func(lockkeeper.Event) { received.Add(1) }}
		ks = append(ks, d.keeperWith(lockkeeper.Options{HeartbeatInterval: rareHeartbeat, Hooks: hooks}))
	}
	start := time.Now()
	parallel(names, func(n int) {
		var c counter
		parallel(len(ks)*2, func(i int) {
			l := d.lock(ks[i%len(ks)], fmt.Sprintf("n%d", n))
			for range 5 {
				must.Report(d, l.Do(context.Background(), func(context.Context, uint64) error { c.inc(); return nil }))
			}
		})
		check.That(d, c.n == len(ks)*2*5 && c.overlaps.Load() == 0, "counted %d, %d overlaps", c.n, c.overlaps.Load())
	})
	// Contenders almost always wait, and only messages end a wait before the heartbeat.
	check.That(d, int(received.Load()) >= names*10 && time.Since(start) <= rareHeartbeat,
		"%d names: %d wake-ups received in %v", names, received.Load(), time.Since(start))
}

// slotMigrates migrates the slot of a name with a waiter. The next wake-up comes from the new primary.
func (d *deployment) slotMigrates(c *redistest.Cluster) {
	d.Helper()
	ctx := must.Within(d, time.Minute)
	received := make(chan struct{}, 10)
	a := d.lock(d.keeper(lockkeeper.Hooks{}), "moving")
	b := d.lock(d.keeper(lockkeeper.Hooks{WakeupReceived: func(lockkeeper.Event) { received <- struct{}{} }}), "moving")
	pass := func(what string) {
		d.Helper()
		lease := must.Get(a.Lock(ctx))(d)
		got := inBackground(func() error { return lockOnce(ctx, b.Lock) })
		rdb := c.Client()
		eventually(d, "a waiter", func() bool {
			return rdb.ZCount(ctx, "{lock:moving}:"+d.p.Kind+":queue", "-inf", protocol.BehindWaiters).Val() == 1
		})
		to := c.MoveSlot("lock:moving").Client()
		eventually(d, "the subscription at the new primary", func() bool {
			list, err := to.PubSubShardChannels(ctx, "{lock:moving}:wake:*").Result()
			return err == nil && len(list) > 0
		})
		check.Is(d, lease.Release(ctx), nil, "%s", what)
		check.Is(d, <-got, nil, "%s", what)
		must.Receive(d, received, frequentHeartbeat, what+": a wake-up after the slot had moved")
	}
	pass("there")
	pass("and back")
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		must.That(t, !time.Now().After(end), "not within 20 s: %s", what)
	}
}

// documentedUser gives servers the user of docs/operations.md, and returns its name and password.
func documentedUser(t testing.TB, servers ...*redistest.Server) (name, password string) {
	t.Helper()
	args := []any{"acl", "setuser"}
	for _, f := range redistest.DocumentedUser(t, "../docs/operations.md") {
		args = append(args, f)
	}
	for _, s := range servers {
		must.OK(t, s.Client().Do(t.Context(), args...).Err())
	}
	return args[2].(string), "change-me"
}

// newUser returns a client of a new user, who may do everything with any key and channel unless the rules say otherwise.
func newUser(t testing.TB, s *redistest.Server, rules ...any) *redis.Client {
	t.Helper()
	name := fmt.Sprint("user", users.Add(1))
	args := append([]any{"acl", "setuser", name, "on", ">pw", "&*", "+@all"}, rules...)
	must.OK(t, s.Client().Do(context.Background(), args...).Err())
	return clientOf(t, s, name, "pw")
}

var users atomic.Int64

func clientOf(t testing.TB, s *redistest.Server, user, password string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, Username: user, Password: password})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func lockOf(w *World, rdb *redis.Client) Locker {
	w.Helper()
	return must.Get(w.P.New(newKeeper(w, rdb, lockkeeper.Options{}), "x", Options{TTL: time.Minute}))(w)
}

func clusterClientOf(t testing.TB, c *redistest.Cluster, user, password string) redis.UniversalClient {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), Username: user, Password: password})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// rights runs a primitive as a user with the permissions in docs/operations.md and no more, on one server and on a
// cluster: waits are ended by messages, leases are renewed, and nothing is logged.
func rights(t *testing.T, p Primitive) {
	tests := map[string]func(*testing.T){"single": func(t *testing.T) {
		s := redistest.Start(t)
		user, password := documentedUser(t, s)
		runAsDocumentedUser(t, p, func() redis.UniversalClient { return clientOf(t, s, user, password) })
	}}
	if p.everywhere() {
		tests["cluster"] = func(t *testing.T) {
			c := redistest.StartCluster(t, 3, 0)
			user, password := documentedUser(t, c.Primaries...)
			runAsDocumentedUser(t, p, func() redis.UniversalClient { return clusterClientOf(t, c, user, password) })
		}
	}
	runParallel(t, tests)
}

func runAsDocumentedUser(t *testing.T, p Primitive, dial func() redis.UniversalClient) {
	ctx := must.Within(t, 30*time.Second)
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	received, renewed, queued := make(chan struct{}, 100), make(chan struct{}, 100), make(chan struct{}, 100)
	var locks []Locker
	for range 2 {
		k := newKeeper(t, dial(), lockkeeper.Options{HeartbeatInterval: rareHeartbeat, Logger: logger, Hooks: lockkeeper.Hooks{
			Queued:         func(lockkeeper.Event) { queued <- struct{}{} },
			WakeupReceived: func(lockkeeper.Event) { received <- struct{}{} },
			Renewed:        func(lockkeeper.Event) { renewed <- struct{}{} },
		}})
		locks = append(locks, must.Get(p.New(k, "orders:42", Options{TTL: 3 * time.Second}))(t))
	}
	for _, cancelled := range []bool{false, true} {
		lease := must.Get(locks[0].Lock(ctx))(t)
		wait, stop := context.WithCancel(ctx)
		ended := inBackground(func() error { return lockOnce(wait, locks[1].Lock) })
		<-renewed
		<-queued
		if cancelled {
			stop()
		} else {
			must.Report(t, lease.Release(ctx))
		}
		err := <-ended
		check.That(t, (err != nil) == cancelled, "a wait, cancelled %t: %v", cancelled, err)
		must.Report(t, lease.Release(ctx))
		stop()
		for len(queued) > 0 {
			<-queued
		}
	}
	check.That(t, len(received) != 0, "the wait was not ended by a message")
	check.That(t, log.Len() == 0, "logged:\n%s", log.String())
}
