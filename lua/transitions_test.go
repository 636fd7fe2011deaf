package lua_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// The tests in this file are about what every primitive has to do in unusual states.

// flagsOf returns the flags of a token, and the policy's argument, with which only one request at a time holds the lock.
func flagsOf(set *lua.Set) (flags, policyArg string) {
	switch set {
	case lua.RWLock:
		return "w", ""
	case lua.Semaphore:
		return "h1", "1:0:0"
	case lua.RateLimit:
		return "hc1", "1:1000000:60000"
	}
	return "", ""
}

// allAtTime runs a test of every primitive on the embedded server, whose clock only the test moves.
func allAtTime(t *testing.T, test func(b *bench, pass func(time.Duration))) {
	atTimes(t, lua.All, test)
}

// enqueue acquires for the holder, and queues the others.
func (b *bench) enqueue(holder string, others ...string) {
	b.Helper()
	b.code(b.acquire(holder, 0), lua.Granted)
	for _, token := range others {
		b.code(b.acquire(token, heartbeatTTL), lua.Waiting)
	}
}

// notifiedToRetry expects one message, which tells this request to retry in so many ms.
func (b *bench) notifiedToRetry(sub *redis.PubSub, token string, ms int) {
	b.Helper()
	if got, want := b.message(sub), []string{strings.Split(token, ":")[1], strconv.Itoa(-ms)}; fmt.Sprint(got) != fmt.Sprint(want) {
		b.Fatalf("message %v, want %v", got, want)
	}
}

func TestHeadNotifiedOfShortenedLease(t *testing.T) {
	t.Parallel()
	allAtTime(t, func(b *bench, _ func(time.Duration)) {
		holder, first, second := b.token("a", 1), b.token("b", 1), b.token("b", 2)
		b.enqueue(holder, first, second)
		sub := b.listen("b")
		b.code(b.renew(holder, 4, 1000, 1), lua.Granted)
		b.notifiedToRetry(sub, first, 1000)
		b.code(b.renew(holder, 2, 500, 1), lua.Granted) // without the key of the queue it can notify nobody
		b.notNotified("b", sub)
		b.code(b.renew(holder, 4, 20_000, 1), lua.Granted) // it asks before that anyway
		b.notNotified("b", sub)
		b.code(b.renew(b.token("a", 2), 4, 1000, 1), lua.Refused)
		b.notNotified("b", sub)
	})
}

// Where readers hold the lock, it frees up by itself when the last of their leases ends.
func TestWriterNotifiedOfRemainingReader(t *testing.T) {
	t.Parallel()
	atTimeOf(t, lua.RWLock, func(b *bench, pass func(time.Duration)) {
		var readers []string
		for i := range int64(4) {
			readers = append(readers, rwToken("a", int(i), "r"))
			b.wantAcquire(lua.Granted, readers[i], 0)
			b.renew(readers[i], 2, (i+1)*900, 1)
		}
		writer := rwToken("b", 1, "w")
		b.wantAcquire(lua.Waiting, writer, heartbeatTTL)
		sub := b.listen("b")
		b.code(b.release(readers[0], 0), lua.Granted) // others last longer
		b.notNotified("b", sub)
		b.code(b.release(readers[3], 0), lua.Granted)
		b.notifiedToRetry(sub, writer, 2700)
		pass(100 * time.Millisecond)
		b.code(b.release(readers[2], 0), lua.Granted)
		b.notifiedToRetry(sub, writer, 1700)
	})
}

// An upgrade does not wait for the lease that it replaces.
func TestUpgradeNotifiedOfRemainingReader(t *testing.T) {
	t.Parallel()
	atTimeOf(t, lua.RWLock, func(b *bench, _ func(time.Duration)) {
		origin, dead, long, up := rwToken("b", 1, "r"), rwToken("a", 1, "r"), rwToken("a", 2, "r"), rwToken("b", 2, "u")
		for _, r := range []string{origin, dead, long} {
			b.wantAcquire(lua.Granted, r, 0)
		}
		b.renew(dead, 2, 1000, 1)
		b.renew(origin, 2, 40_000, 1)
		b.code(b.convert(up, origin, heartbeatTTL), lua.Waiting)
		sub := b.listen("b")
		b.code(b.release(long, 0), lua.Granted)
		b.notifiedToRetry(sub, up, 1000)
	})
}

// The queue advances when its first waiters are swept.
func TestNewHeadNotifiedAfterSweep(t *testing.T) {
	t.Parallel()
	allAtTime(t, func(b *bench, pass func(time.Duration)) {
		holder, first, other := b.token("a", 1), b.token("b", 1), b.token("c", 1)
		b.enqueue(holder, b.token("dead", 1), b.token("dead", 2), b.token("dead", 3), first, other)
		pass(heartbeatTTL*time.Millisecond - 2)
		b.heartbeat(0, first)
		pass(time.Second)
		b.renew(holder, 2, 1000, 1)
		sub := b.listen("b")
		b.heartbeat(0, other)
		b.notifiedToRetry(sub, first, 1000)
	})
}

// After the server's clock was set back, a lease would last too long. A heartbeat cuts it to its ttl.
func TestHeadNotifiedOfLeaseCutToTTL(t *testing.T) {
	t.Parallel()
	allAtTime(t, func(b *bench, pass func(time.Duration)) {
		short := "a:1:1000.1000" + b.flags
		first, other := b.token("b", 1), b.token("c", 1)
		b.code(b.eval(b.set.Acquire, acquireArgs(short, 1000, 0, b.policyArg, 0)), lua.Granted)
		for _, token := range []string{first, other} {
			b.code(b.acquire(token, heartbeatTTL), lua.Waiting)
		}
		sub := b.listen("b")
		if b.rdb.Type(ctx, b.keys[0]).Val() == "string" {
			b.rdb.PExpire(ctx, b.keys[0], time.Hour)
		} else {
			b.rdb.ZIncrBy(ctx, b.keys[0], 3_600_000, short)
		}
		b.heartbeat(0, other)
		b.notifiedToRetry(sub, first, 1000)
	})
}

// TestExpiredWaitersNotified: when the server's clock was set ahead, the waiters are alive and do not know of it. The script
// that removes them notifies them to retry, the first of them first, one waiter of each keeper, and at most ten keepers.
func TestExpiredWaitersNotified(t *testing.T) {
	t.Parallel()
	ahead := heartbeatTTL*time.Millisecond + 500
	for what, happens := range map[string]func(b *bench){
		"release":   func(b *bench) { b.code(b.release(b.token("a", 1), 0), lua.Granted) },
		"heartbeat": func(b *bench) { b.heartbeat(0, b.token("x", 1)) },
	} {
		t.Run(what, func(t *testing.T) {
			allAtTime(t, func(b *bench, pass func(time.Duration)) {
				tokens := []string{b.token("gone", 1)}
				subs := map[string]*redis.PubSub{}
				for i := range 12 {
					k := "k" + strconv.Itoa(i)
					subs[k] = b.listen(k)
					tokens = append(tokens, b.token(k, 1), b.token(k, 2))
				}
				b.enqueue(b.token("a", 1), tokens...)
				pass(ahead)
				happens(b)
				b.members(2)
				order := slices.SortedFunc(maps.Keys(subs), func(a, b string) int {
					if what == "release" {
						return cmp.Or(len(a)-len(b), strings.Compare(a, b))
					}
					return strings.Compare(a+":", b+":") // all lapse at once, and are swept by their names
				})
				for i, k := range order {
					if i < 9 { // before them somebody has gone
						b.notifiedToRetry(subs[k], b.token(k, 1), 10*(i+1)+1)
					}
					b.notNotified(k, subs[k])
				}
			})
		})
	}
}

// TestWrongType: the lock's key has another type. Requests, heartbeats and inspect return the error. A cancelled waiter leaves
// the queue all the same, and may not rejoin if it has a tombstone.
func TestWrongType(t *testing.T) {
	t.Parallel()
	onServers(t, lua.All, func(b *bench) {
		set, holder, waits, gone := b.set, b.token("a", 1), b.token("b", 1), b.token("b", 2)
		b.enqueue(holder, waits, gone)
		b.rdb.Del(ctx, b.keys[0])
		b.rdb.RPush(ctx, b.keys[0], "x")
		for _, c := range []struct {
			what   string
			script *lua.Script
			args   []any
		}{
			{"heartbeat", set.Heartbeat, append(heartbeatArgs(0, b.policyArg), waits)},
			{"rejoin", set.Heartbeat, append(heartbeatArgs(1, b.policyArg), b.token("b", 3), 0)},
			{"try", set.Acquire, acquireArgs(b.token("c", 1), ttl, 0, b.policyArg, 0)},
			{"acquire", set.Acquire, acquireArgs(b.token("c", 2), ttl, heartbeatTTL, b.policyArg, 0)},
			{"allow", set.Allow, allowArgs(token("c", 1)+"c1", b.policyArg)},
			{"renew", set.Fast.Renew, protocol.FastRenewArgs(nil, holder, ttl)},
			{"renew, in full", set.Renew, renewArgs(holder, ttl, 0)},
			{"inspect", set.Inspect, protocol.InspectArgs(nil, protocol.InspectHolders, 0, 10, "")},
			{"raise_fence", set.RaiseFence, protocol.RaiseFenceArgs(nil, holder, int64(1), settings, 0)},
			{"release of the lease", set.Release, releaseArgs(holder, 0, 0)},
			{"release of a waiter", set.Release, releaseArgs(waits, 0, 1)},
			{"release of the waiter that rejoined", set.Release, releaseArgs(b.token("b", 3), 0, 1)},
			{"release of a waiter, to tombstone", set.Release, releaseArgs(gone, 60_000, 1)},
		} {
			if c.script == nil {
				continue
			}
			if v, err := b.run(c.script, c.args...).Result(); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
				b.Errorf("%s: %v, %v", c.what, v, err)
			}
		}
		b.members(2)
		b.allExpireBut(0)

		b.rdb.Del(ctx, b.keys[0])
		b.code(b.acquire(gone, 0), lua.Tombstoned)
		b.code(b.acquire(b.token("c", 3), 0), lua.Granted)
	})
}
