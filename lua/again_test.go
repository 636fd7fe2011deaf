package lua_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// WAIT counts what its own connection has written. So a request that is repeated for a lease that it has must write, even
// within the same millisecond and with nothing new: otherwise WAIT would have nothing to wait for.
func TestRepeatedAcquireWrites(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		set              *lua.Set
		flags, policyArg string
	}{
		{lua.Mutex, "", ""},
		{lua.Fair, "", ""},
		{lua.Redlock, "", ""},
		{lua.RWLock, "r", ""},
		{lua.RWLock, "w", ""},
		{lua.RWLock, "u1", rwToken("b", 1, "r")},
		{lua.Semaphore, "h1", three},
		{lua.RateLimit, "c1", "0:3:60000"}, // they stay away for as long as this takes
		{lua.RateLimit, "hc1", twoAndFour},
	} {
		t.Run(c.set.Kind+c.flags, func(t *testing.T) {
			b := newBench(t, redistest.Connect(redistest.Start(t)), c.set)
			if c.flags == "u1" {
				b.wantAcquire(lua.Granted, c.policyArg, 0)
			}
			ask := acquireArgs(token("a", 1)+c.flags, ttl, 0, c.policyArg, 0)
			first := b.eval(c.set.Acquire, ask)
			b.code(first, lua.Granted)
			for _, script := range []*lua.Script{c.set.Acquire, c.set.Allow} {
				if script == nil || script == c.set.Allow && c.flags != "c1" {
					continue
				}
				for range 20 {
					before := b.changes()
					again := b.eval(script, ask)
					b.code(again, lua.Granted)
					must.That(t, again[1] == first[1], "fence %v, then %v", first[1], again[1])
					must.That(t, b.changes() != before, "nothing was written")
				}
			}
		})
	}
}

// TestUndecidedWritesNothing: a fast script that leaves the decision to the general one has changed nothing, so replicas and whoever reads the
// events of keys do not see it.
func TestUndecidedWritesNothing(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range []struct {
		set              *lua.Set
		flags, policyArg string
	}{
		{lua.Mutex, "", ""},
		{lua.Fair, "", ""},
		{lua.RWLock, "r", ""},
		{lua.RWLock, "w", ""},
		{lua.Semaphore, "h1", "1:0:0"},
		{lua.RateLimit, "c1", "0:1:60000"},
		{lua.RateLimit, "hc1", "1:1:60000"},
	} {
		b := newBench(t, redistest.Connect(redistest.Start(t)), c.set)
		b.policyArg = c.policyArg
		held, waits, unknown := token("a", 1)+c.flags, token("w", 1)+c.flags, token("b", 1)+c.flags
		ask := func(token string, heartbeatTTL int64) { b.acquire(token, heartbeatTTL) }
		do := func(args ...any) { must.OK(t, b.rdb.Do(ctx, args...).Err()) }
		for state, prepare := range map[string]func(){
			"nothing":                   func() {},
			"released":                  func() { ask(held, 0); b.release(held, 0) },
			"held":                      func() { ask(held, 0) },
			"held, without metadata":    func() { ask(held, 0); do("del", b.keys[1]) },
			"held for ever":             func() { ask(held, 0); do("persist", b.keys[0]) },
			"waits":                     func() { ask(held, 0); ask(waits, heartbeatTTL) },
			"waits, without metadata":   func() { ask(held, 0); ask(waits, heartbeatTTL); do("del", b.keys[1]) },
			"waits for nothing":         func() { ask(held, 0); ask(waits, heartbeatTTL); do("del", b.keys[0]) },
			"a tombstone":               func() { b.release(unknown, 60_000) },
			"a first fence of an epoch": func() { ask(held, 0); b.release(held, 0); do("hset", b.keys[1], "seq", int64(1_000_000_000_001)) },
			"a fence of the future":     func() { ask(held, 0); b.release(held, 0); do("hset", b.keys[1], "seq", int64(4_000_000_000_000_000)) },
			"another type":              func() { do("lpush", b.keys[0], "x") },
		} {
			for _, token := range []string{held, waits, unknown} {
				fast := protocol.FastOf(c.set, c.policyArg)
				for _, call := range []struct {
					script *lua.Script
					args   []any
				}{
					{fast.Acquire, fastArgs(c.set, token, c.policyArg)},
					{fast.Release, []any{token}},
					{fast.HandOn, []any{token, channelPrefix, protocol.EpochOf(metadataTTL), way}},
				} {
					if call.script == nil {
						continue
					}
					do("flushall")
					prepare()
					before := b.changes()
					if n, err := b.run(call.script, call.args...).Int64(); err != nil || n != lua.Undecided {
						continue // it has decided, or failed
					}
					seen[call.script.Name] = true
					check.That(t, b.changes() == before, "%s of %s, %s: it has written and replied that it decides nothing", call.script.Name, token, state)
				}
			}
		}
	}
	for _, set := range lua.All {
		for _, s := range []*lua.Script{set.Fast.Acquire, set.Fast.HandOn} {
			check.That(t, s == nil || seen[s.Name] || set == lua.Once, "%s was always decided", set.Kind)
		}
	}
}

var dirty = regexp.MustCompile(`rdb_changes_since_last_save:(\d+)`)

// changes returns how many changes the server has counted.
func (b *bench) changes() int {
	b.Helper()
	text := must.Get(b.rdb.Info(ctx, "persistence").Result())(b)
	m := dirty.FindStringSubmatch(text)
	must.That(b, m != nil, "no count of changes in %q", text)
	n, _ := strconv.Atoi(m[1])
	return n
}

// onReadOnly is a call in a state of the lock that must fail on a server that may not write.
type onReadOnly struct {
	what   string
	before func(b *bench)
	script *lua.Script // nil: the primitive has none
	args   []any
}

// readOnlyCalls are those of a primitive.
func readOnlyCalls(b *bench) []onReadOnly {
	set, ask := b.set, func(token string, heartbeatTTL int) []any {
		return acquireArgs(token, ttl, heartbeatTTL, b.policyArg, 0)
	}
	heartbeat := func(tokens ...any) []any { return append(heartbeatArgs(0, b.policyArg), tokens...) }
	const window = "0:3:60000"
	held, waits, unknown := b.token("a", 1), b.token("w", 1), b.token("b", 1)
	free := func(*bench) {}
	isHeld := func(b *bench) { b.enqueue(held) }
	busy := func(b *bench) { b.enqueue(held, waits) }
	list := []onReadOnly{
		{"acquire of what is held by itself", busy, set.Acquire, ask(held, 0)},
		{"acquire, as well, that would wait", busy, set.Acquire, ask(held, heartbeatTTL)},
		{"acquire of what waits", busy, set.Acquire, ask(waits, heartbeatTTL)},
		{"acquire that waits", busy, set.Acquire, ask(unknown, heartbeatTTL)},
		{"acquire of what is held", isHeld, set.Acquire, ask(unknown, 0)},
		{"acquire behind a waiter", busy, set.Acquire, ask(unknown, 0)},
		{"acquire of what has a tombstone", func(b *bench) {
			b.eval(set.Release, releaseArgs(unknown, 60_000, 1))
		}, set.Acquire, ask(unknown, 0)},
		{"heartbeat of a waiter", busy, set.Heartbeat, heartbeat(waits)},
		{"heartbeat of an unknown token", busy, set.Heartbeat, heartbeat(unknown)},
		{"heartbeat of a holder", busy, set.Heartbeat, heartbeat(held)},
		{"heartbeat without tokens", busy, set.Heartbeat, heartbeat()},
		{"renew, in full", busy, set.Renew, renewArgs(held, ttl)},
		{"raise_fence", busy, set.RaiseFence, []any{held, int64(1), int64(metadataTTL), 0}},
		{"release", busy, set.Release, releaseArgs(held, 0, 0)},
		{"release of one that only waits", busy, set.Release, releaseArgs(waits, 0, 1)},
		{"release of an unknown token, to tombstone", busy, set.Release, releaseArgs(unknown, 1000, 1)},
		{"release of nothing", free, set.Release, releaseArgs(unknown, 0, 0)},
		{"allow", busy, set.Allow, allowArgs(token("b", 1)+"c1", window)},
		{"allow behind one that waits for a window", func(b *bench) {
			b.eval(set.Acquire, allowArgs(permitToken("a", 1, "c", 2), window))
			b.eval(set.Acquire, acquireArgs(permitToken("w", 1, "c", 2), ttl, heartbeatTTL, window, 0))
		}, set.Allow, allowArgs(permitToken("b", 1, "c", 1), window)},
	}
	switch set {
	case lua.RWLock:
		reader, write, read := rwToken("a", 1, "r"), rwToken("b", 1, "w"), rwToken("b", 1, "r")
		isRead := func(b *bench) { b.wantAcquire(lua.Granted, reader, 0) }
		twoRead := func(b *bench) {
			isRead(b)
			b.wantAcquire(lua.Granted, read, 0)
		}
		upgrade := acquireArgs(rwToken("b", 2, "u1"), ttl, 0, read, 0)
		upgraded := func(b *bench) {
			b.wantAcquire(lua.Granted, read, 0)
			b.upgrade(lua.Granted, rwToken("b", 2, "u1"), read)
		}
		list = append(list,
			onReadOnly{"a read behind a waiting writer", func(b *bench) {
				isRead(b)
				b.wantAcquire(lua.Waiting, waits, heartbeatTTL)
			}, set.Acquire, ask(read, 0)},
			onReadOnly{"a write beside a reader", isRead, set.Acquire, ask(write, 0)},
			onReadOnly{"an upgrade beside another", func(b *bench) {
				twoRead(b)
				b.upgrade(lua.Waiting, rwToken("a", 2, "u1"), reader)
			}, set.Acquire, upgrade},
			onReadOnly{"an upgrade beside a reader", twoRead, set.Acquire, upgrade},
			onReadOnly{"an upgrade of nothing", free, set.Acquire, upgrade},
			onReadOnly{"an upgrade that was granted", upgraded, set.Acquire, upgrade},
			onReadOnly{"an upgrade that was granted, given up", upgraded, set.Release, releaseArgs(rwToken("b", 2, "u1"), 0, 1)},
			onReadOnly{"a downgrade that is late", upgraded, set.Downgrade, downgradeArgs(read, 1, "")},
			onReadOnly{"a downgrade of nothing", free, set.Downgrade, downgradeArgs(write, 1, "")},
			onReadOnly{"a downgrade of a read", func(b *bench) {
				b.wantAcquire(lua.Granted, read, 0)
			}, set.Downgrade, downgradeArgs(read, 1, "")})
	case lua.Semaphore:
		holds := func(n int) func(*bench) {
			return func(b *bench) { b.semaphoreAcquire(lua.Granted, three, permitToken("a", 1, "h", n), 0) }
		}
		more := func(n int) []any { return acquireArgs(permitToken("b", 1, "h", n), ttl, 0, three, 0) }
		list = append(list,
			onReadOnly{"more than there are", holds(1), set.Acquire, more(4)},
			onReadOnly{"more than are left", holds(2), set.Acquire, more(2)},
			onReadOnly{"a limit that was given up", func(b *bench) {
				holds(1)(b)
				b.eval(set.Release, releaseArgs(permitToken("b", 1, "h", 1), 60_000, 1))
			}, set.Limit, limitArgs(three, 4, permitToken("b", 1, "h", 1))})
	}
	return list
}

// TestScriptsFailOnReadOnlyServer: a replica, or a primary that may not write, neither says that a lock is held, whatever the reason of the
// refusal, nor that there was no lease. A reply without a write would be relied on: a waiter would learn again and again that it is not
// queued, and a majority lease that this server's fences continue from its own. A refusal of nothing changes nothing.
func TestScriptsFailOnReadOnlyServer(t *testing.T) {
	t.Parallel()
	for _, set := range lua.All {
		t.Run(set.Kind, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, redistest.Connect(redistest.Start(t)), set)
			b.listen("a")
			b.listen("w")
			do := func(args ...any) { must.OK(t, b.rdb.Do(ctx, args...).Err()) }
			for _, c := range readOnlyCalls(b) {
				if c.script == nil {
					continue
				}
				c.before(b)
				do("replicaof", "127.0.0.1", "1")
				v, err := b.run(c.script, c.args...).Result()
				check.That(t, redis.HasErrorPrefix(err, "READONLY"), "%s: %v, %v", c.what, v, err)
				do("replicaof", "no", "one")
				changes := b.changes()
				_ = b.run(c.script, c.args...)
				n := b.changes() - changes
				check.That(t, !strings.Contains(c.what, "nothing") || n == 0, "%s: %d changes for the replicas", c.what, n)
				do("flushall")
			}
		})
	}
}
