package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

var faults = []Case{
	{Name: "f06_server_restarts_empty", Real: true, Alone: true, Test: restartsEmpty},
	{Name: "f07_server_restarts_with_data", Real: true, Alone: true, Test: restartsWithData},
	{Name: "f19_slow_subscription_disconnected", Real: true, Alone: true, Test: subscriptionOverrun},
	{Name: "f22_no_replies", Test: noReplies},
	{Name: "f30_evicted_keys", Test: evictedKeys},
	{Name: "f32_server_busy_with_script", Real: true, Alone: true, Test: busyServer},
	{Name: "f33_server_loading", Real: true, Alone: true, Test: loadingServer},
	{Name: "f35_server_refuses_writes", Real: true, Alone: true, Test: writesRefused},
	{Name: "f35_waiter_on_server_refusing_writes", Real: true, Alone: true, Test: waiterWithWritesRefused},
	{Name: "f37_server_at_max_clients", Real: true, Alone: true, Test: maxClientsReached},
	{Name: "f38_exhausted_client_pool", Real: true, Test: exhaustedPool},
	{Name: "f39_server_paused", Real: true, Alone: true, Test: serverPauses},
	{Name: "f40_server_refuses_connections", Real: true, Alone: true, Test: connectionRefused},
	{Name: "f53_missing_permissions", Real: true, Alone: true, Test: missingPermissions},
}

// checkLockTimesOut calls Lock with this timeout and checks that it returns in time, with an error for the expired
// time and not for contention.
func (w *World) checkLockTimesOut(l Locker, within time.Duration) {
	w.Helper()
	ctx := must.Within(w, within)
	start := time.Now()
	lease, err := l.Lock(ctx)
	if err == nil {
		w.release(lease)
	}
	w.checkError(err, context.DeadlineExceeded, lockkeeper.ErrUnavailable)
	check.That(w, time.Since(start) <= within+w.slack(), "a Lock of %v returned after %v", within, time.Since(start))
}

func (w *World) checkFenceRises(before, after *lockkeeper.Lease) {
	w.Helper()
	check.That(w, after.Fence() > before.Fence(), "fence %d after %d", after.Fence(), before.Fence())
}

// restartsEmpty restarts the server without its data. A holder learns of the loss by its next renewal, a waiter
// rejoins the queue, and fences keep rising. Until that renewal two processes may believe that they hold the lock,
// which is why there are fences.
func restartsEmpty(w *World) {
	long := withTTL(10 * ttl)
	first := w.hold(w.Process().Lock("x", long))
	ch := w.acquireAsync(w.ctx(), 1, w.Process().Lock("x", long).Lock)
	w.server.Kill()
	w.server.Restart()
	r := w.awaitGrant(ch, 2*time.Second) // the longest backoff, and a heartbeat
	w.checkFenceRises(first, r.lease)
	w.awaitLoss(first, 10*ttl/3)
	check.That(w, strings.Contains(first.Err().Error(), "the server does not know the token"),
		"the loss was not reported by a renewal: %v", first.Err())
	w.release(r.lease)
	w.checkClean()
}

// restartsWithData restarts a server with its data. A lease expires at its time, also while the server is down;
// other leases and the queue remain.
func restartsWithData(w *World) {
	w.server = redistest.Start(w.T, "--appendonly", "yes", "--appendfsync", "always")
	ends := w.hold(w.Process().Lock("ends", withoutRenewal))
	over := time.Now().Add(ttl + 5*time.Millisecond) // at the server, which uses the same clock and granted the lease earlier
	kept := w.hold(w.Process().Lock("kept", withTTL(20*ttl)))
	ch := w.lockAsync(w.ctx(), w.Process().Lock("kept"))
	w.awaitWaiters("kept", 1)
	w.server.Kill()
	w.awaitLoss(ends, ttl)
	w.server.Restart()
	time.Sleep(time.Until(over))
	keys, err := w.admin.Exists(w.ctx(), w.P.Key("ends")).Result()
	check.That(w, err == nil && len(w.holders("ends")) == 0, "the expired lease still exists: %d, %v", keys, err)
	next := w.hold(w.Process().Lock("ends"))
	w.checkFenceRises(ends, next)
	w.release(next)
	w.must(kept.Extend(w.ctx(), 20*ttl))
	w.checkError(errorOf(w.Process().Lock("kept").TryLock(w.ctx())), lockkeeper.ErrNotAcquired)
	w.release(kept)
	r := w.awaitGrant(ch, 2*time.Second)
	w.checkFenceRises(kept, r.lease)
	w.release(r.lease)
	w.checkClean()
}

// subscriptionOverrun checks that waiters are notified again after the server has closed a subscription that reads
// too slowly.
func subscriptionOverrun(w *World) {
	w.must(w.admin.ConfigSet(w.ctx(), "client-output-buffer-limit", "pubsub 8192 0 0").Err())
	lease := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	b := w.Process()
	ch := w.acquireAsync(w.ctx(), 1, b.Lock("x").Lock)
	w.awaitSubscription(b, true)
	wake := w.channels(b)[0]
	subscribed := func() string {
		list := must.Get(w.admin.Do(w.ctx(), "client", "list", "type", "pubsub").Text())(w)
		id, _, _ := strings.Cut(list[strings.LastIndex(strings.TrimSpace(list), "\n")+1:], " ") // the newest
		return id
	}
	before := subscribed()
	w.must(w.admin.Publish(w.ctx(), wake, strings.Repeat("x", 1<<20)).Err())
	w.eventually("the server to end the subscription", func() bool { return subscribed() != before })
	w.release(lease)
	w.release(w.awaitGrant(ch, heartbeatInterval).lease)
	w.awaitSubscription(b, true)
	w.checkClean()
}

// noReplies loses every reply, and after a while every request. The caller never learns of its lease, so the lease
// must not remain: it is released as soon as the server can be reached.
func noReplies(w *World) {
	w.clientTimeout = time.Second // that the server did not reply to
	p := w.Process()
	l := p.Lock("x", withTTL(time.Minute))
	w.checkFree(l) // the scripts are known
	p.Net.Break("evalsha", 1<<30, faultnet.SwallowReply)
	done := make(chan struct{})
	go func() { w.checkLockTimesOut(l, 4*time.Second); close(done) }()
	w.eventually("an attempt to take the lock", func() bool { return len(w.holders("x")) == 1 })
	time.Sleep(1500 * time.Millisecond) // another attempt
	p.Net.Down()
	<-done
	check.That(w, len(w.holders("x")) == 1, "the lease expired before it could be released")
	p.Net.Restore()
	w.checkOnlyTombstones()
	w.checkFree(w.Process().Lock("x"))
}

// evictedKeys checks that a lock recovers after a server without memory has evicted any of its keys.
func evictedKeys(w *World) {
	for i, kinds := range [][]string{{"holders"}, {"queue"}, {"meta"}, {"queue", "meta"}, {"holders", "queue"}, {"holders", "queue", "meta"}} {
		name := fmt.Sprintf("x%d", i)
		first := w.hold(w.Process().Lock(name))
		l := w.Process().Lock(name)
		ch := w.lockAsync(w.ctx(), l)
		w.awaitWaiters(name, 1)
		time.Sleep(time.Millisecond) // without metadata, fences follow the clock
		for _, kind := range kinds {
			key := strings.TrimSuffix(w.queueKey(name), "queue") + kind
			if kind == "holders" {
				key = w.P.Key(name)
			}
			w.must(w.admin.Del(w.ctx(), key).Err())
		}
		if kinds[0] == "holders" {
			w.awaitLoss(first, ttl/3+50*time.Millisecond)
		} else {
			w.release(first)
		}
		r := w.awaitGrant(ch, 2*heartbeatInterval)
		w.checkFenceRises(first, r.lease)
		w.must(r.lease.Err())
		w.release(r.lease)
		w.checkFree(l)
	}
}

func busyServer(w *World) {
	const script = `local t = redis.call('TIME') local till = t[1] * 1000 + t[2] / 1000 + ARGV[1]
		repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > till`
	w.must(w.admin.ConfigSet(w.ctx(), "busy-reply-threshold", "20").Err())
	lease := w.hold(w.Process().Lock("held", withTTL(time.Minute)))
	l := w.Process().Lock("x")
	w.checkFree(l)
	slow := redis.NewClient(&redis.Options{Addr: w.server.Addr, ReadTimeout: time.Minute})
	defer func() { _ = slow.Close() }()
	ended := make(chan error, 1)
	go func() { ended <- slow.Eval(w.ctx(), script, nil, 1500).Err() }()
	w.eventually("BUSY", func() bool { return redis.HasErrorPrefix(w.admin.Ping(w.ctx()).Err(), "BUSY") })
	w.checkLockTimesOut(l, heartbeatInterval)
	r := w.awaitGrant(w.lockAsync(w.ctx(), l), 3*time.Second)
	err := <-ended
	check.That(w, err == nil || errors.Is(err, redis.Nil), "the slow script: %v", err)
	w.release(r.lease)
	w.must(lease.Err())
	w.release(lease)
	w.checkOnlyTombstones()
}

func loadingServer(w *World) {
	// It loads until the delay is taken back, which a server that loads allows.
	w.server = redistest.Start(w.T, "--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024")
	w.must(w.admin.Do(w.ctx(), "debug", "populate", 50_000).Err())
	w.must(w.admin.Save(w.ctx()).Err())
	p := w.Process()
	l := p.Lock("x", withTTL(time.Minute))
	w.checkFree(l)
	w.server.Kill()
	booted := make(chan struct{})
	go func() { w.server.Restart(); close(booted) }()
	w.eventually("LOADING", func() bool { return redis.HasErrorPrefix(w.admin.Ping(w.ctx()).Err(), "LOADING") })
	w.checkLockTimesOut(l, 3*heartbeatInterval/4) // longer than what counts as a wait cut short
	_, err := l.TryLock(w.ctx())
	check.That(w, redis.HasErrorPrefix(err, "LOADING"), "TryLock while the server is loading: %v", err)
	ch := w.lockAsync(w.ctx(), l)
	w.must(w.admin.ConfigSet(w.ctx(), "key-load-delay", "0").Err())
	r := w.awaitGrant(ch, 5*time.Second)
	<-booted
	w.release(r.lease)
}

// writesRefused checks a server that refuses every write, including releases. Calls return its error; leases expire,
// and their holders consider them lost in time.
func writesRefused(w *World) {
	w.server = redistest.Start(w.T, "--enable-protected-configs", "yes")
	dir := filepath.Join(w.server.Dir, "away")
	for code, way := range map[string][2]func(){
		"NOREPLICAS": {
			func() { w.must(w.admin.ConfigSet(w.ctx(), "min-replicas-to-write", "1").Err()) },
			func() { w.must(w.admin.ConfigSet(w.ctx(), "min-replicas-to-write", "0").Err()) },
		},
		"MISCONF": { // it cannot save: its directory is missing
			func() {
				w.must(os.Mkdir(dir, 0o700))
				w.must(w.admin.ConfigSet(w.ctx(), "dir", dir).Err())
				w.must(os.Remove(dir))
				w.must(w.admin.ConfigSet(w.ctx(), "save", "3600 1").Err())
				_ = w.admin.BgSave(w.ctx()).Err()
				w.eventually("a save that failed", func() bool {
					return strings.Contains(w.admin.Info(w.ctx(), "persistence").Val(), "rdb_last_bgsave_status:err")
				})
			},
			func() { w.must(w.admin.ConfigSet(w.ctx(), "save", "").Err()) },
		},
	} {
		kept, given := w.hold(w.Process().Lock("kept")), w.hold(w.Process().Lock("given"))
		l := w.Process().Lock("x")
		way[0]()
		_, err := l.TryLock(w.ctx())
		if code == "NOREPLICAS" {
			w.checkError(err, lockkeeper.ErrUnavailable)
		} else {
			w.checkError(err) // an operator has to resolve it
		}
		check.That(w, redis.HasErrorPrefix(err, code), "TryLock: %v, not %s", err, code)
		ctx, cancel := context.WithTimeout(w.ctx(), heartbeatInterval)
		check.That(w, given.Release(ctx) != nil, "%s: a release succeeded", code)
		cancel()
		w.awaitLoss(kept, ttl)
		w.eventually("the leases to end by themselves", func() bool { return len(w.holders("kept"))+len(w.holders("given")) == 0 })
		way[1]()
		w.checkFree(w.Process().Lock("given"))
		w.checkFree(l)
	}
}

// waiterWithWritesRefused checks that a waiter gives up in time when the server begins to refuse writes, even if its
// queue entry has expired by then, and that it sends few commands until then.
func waiterWithWritesRefused(w *World) {
	giveUp := 3*heartbeatInterval + time.Second + 5*heartbeatInterval // the queue expires a second after the heartbeats
	w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	p := w.Process(func(o *lockkeeper.Options) { o.Retry.MaxElapsed = giveUp })
	ch := w.acquireAsync(w.ctx(), 1, p.Lock("x").Lock)
	w.must(w.admin.ConfigSet(w.ctx(), "min-replicas-to-write", "1").Err())
	w.must(w.admin.ConfigResetStat(w.ctx()).Err())
	r := await(w, ch, giveUp+5*heartbeatInterval)
	w.checkError(r.err, lockkeeper.ErrUnavailable)
	check.That(w, redis.HasErrorPrefix(r.err, "NOREPLICAS"), "it ended with %v", r.err)
	calls := w.server.ScriptCalls(w)()
	check.That(w, calls <= 100, "%v scripts were sent meanwhile", calls)
	w.must(w.admin.ConfigSet(w.ctx(), "min-replicas-to-write", "0").Err())
}

// maxClientsReached checks locks while other clients use all connections that the server allows.
func maxClientsReached(w *World) {
	a := w.Process()
	lease := w.hold(a.Lock("x"))
	b := w.Process(func(o *lockkeeper.Options) { o.Retry.MaxElapsed = heartbeatInterval })
	l := b.Lock("y")
	w.must(w.admin.ConfigSet(w.ctx(), "maxclients", "1").Err())
	w.checkLockTimesOut(l, 3*heartbeatInterval/4) // longer than what counts as a wait cut short
	w.checkError(errorOf(l.Lock(w.ctx())), lockkeeper.ErrUnavailable)
	w.checkError(errorOf(l.TryLock(w.ctx())), lockkeeper.ErrUnavailable)
	time.Sleep(2 * ttl)
	w.must(lease.Err()) // existing connections remain
	w.must(w.admin.ConfigSet(w.ctx(), "maxclients", "10000").Err())
	w.checkFree(l)
	w.release(lease)
}

// exhaustedPool checks that leases are renewed while the application blocks all connections of the client's pool.
func exhaustedPool(w *World) {
	p := w.Process()
	lease := w.hold(p.Lock("x"))
	blocked, unblock := context.WithCancel(w.ctx())
	defer unblock()
	const pool = 20 // as in dialer
	for range 2 * pool {
		go p.RDB.BLPop(blocked, time.Minute, "nothing")
	}
	w.eventually("a pool that is used up", func() bool {
		s := p.RDB.PoolStats()
		return s.TotalConns >= pool && s.IdleConns == 0
	})
	time.Sleep(2 * ttl)
	w.must(lease.Err())
	w.release(lease)
	w.checkFree(p.Lock("x"))
	w.must(w.admin.RPush(w.ctx(), "nothing", slices.Repeat([]any{"x"}, 2*pool)...).Err())
}

// serverPauses pauses the server, as CLIENT PAUSE does. A short pause has no effect. In a long one a lease is lost
// by its deadline, and requests that were given up acquire nothing afterwards.
func serverPauses(w *World) {
	pause := func(d time.Duration) { w.must(w.admin.ClientPause(w.ctx(), d).Err()) }
	p := w.Process()
	lease := w.hold(p.Lock("x"))
	l := w.Process().Lock("y", withTTL(time.Minute))
	w.checkFree(l)
	pause(ttl / 2)
	w.checkFree(l)
	w.must(lease.Err())
	time.Sleep(ttl)
	w.must(lease.Err())
	ctx := lease.Context(w.ctx())
	w.must(lease.Extend(w.ctx(), ttl))
	check.That(w, time.Until(lease.Deadline()) <= ttl, "a lease of %v is relied on for %v", ttl, time.Until(lease.Deadline()))
	end := time.Now().Add(2*ttl + time.Second)
	pause(2*ttl + time.Second)
	w.checkLockTimesOut(l, heartbeatInterval)
	must.Receive(w, ctx.Done(), time.Until(end), "the report of the loss, before the end of the pause")
	w.checkError(context.Cause(ctx), lockkeeper.ErrLost)
	w.checkError(lease.Release(w.ctx()), lockkeeper.ErrLost)
	time.Sleep(time.Until(end))
	w.checkOnlyTombstones()
	w.checkFree(l)
	w.checkFree(p.Lock("x"))
}

func connectionRefused(w *World) {
	p := w.Process(func(o *lockkeeper.Options) { o.Retry.MaxElapsed = 2 * heartbeatInterval })
	lease := w.hold(p.Lock("x"))
	deadline := lease.Deadline()
	w.server.Kill()
	l := p.Lock("y")
	w.checkLockTimesOut(l, heartbeatInterval)
	for what, call := range map[string]acquire{"Lock": l.Lock, "TryLock": l.TryLock} {
		_, err := call(w.ctx())
		w.checkError(err, lockkeeper.ErrUnavailable)
		check.That(w, err != nil && strings.Contains(err.Error(), "refused"), "%s: %v", what, err)
	}
	w.awaitLoss(lease, time.Until(deadline))
	w.server.Restart()
	w.release(w.hold(l))
}

func missingPermissions(w *World) {
	for _, rule := range [][]any{{"~other:*"}, {"~*", "-time"}, {"~*", "-@scripting"}, {"~*", "-@write"}} {
		l := lockOf(w, newUser(w, w.server, rule...))
		for what, call := range map[string]acquire{"Lock": l.Lock, "TryLock": l.TryLock} {
			start := time.Now()
			_, err := call(w.ctx())
			w.checkError(err)
			text := strings.ToLower(fmt.Sprint(err))
			check.That(w, strings.Contains(text, "perm") || strings.Contains(text, "can't run this command"), "%s: %s: %v", rule, what, err)
			check.That(w, time.Since(start) <= w.slack(), "%s: %s took %v to say %v", rule, what, time.Since(start), err)
		}
		check.That(w, len(w.holders("x")) == 0, "%s: the lock is held", rule)
	}
	w.checkOnlyTombstones()
}
