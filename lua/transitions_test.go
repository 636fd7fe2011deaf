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
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
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
	for _, set := range lua.All {
		t.Run(set.Kind, func(t *testing.T) { atTimeOf(t, set, test) })
	}
}

// enqueue acquires for the holder, and queues the others.
func (b *bench) enqueue(holder string, others ...string) {
	b.Helper()
	_, policyArg := flagsOf(b.set)
	b.code(b.eval(b.set.Acquire, acquireArgs(holder, ttl, 0, policyArg, 0)), lua.Granted)
	for _, token := range others {
		b.code(b.eval(b.set.Acquire, acquireArgs(token, ttl, heartbeatTTL, policyArg, 0)), lua.Waiting)
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
		flags, _ := flagsOf(b.set)
		holder, first, second := token("a", 1)+flags, token("b", 1)+flags, token("b", 2)+flags
		b.enqueue(holder, first, second)
		sub := b.listen("b")
		b.code(b.renew(holder, 4, 1000, 1), lua.Granted)
		b.notifiedToRetry(sub, first, 1000)
		b.code(b.renew(holder, 2, 500, 1), lua.Granted) // without the key of the queue it can notify nobody
		b.notNotified("b", sub)
		b.code(b.renew(holder, 4, 20_000, 1), lua.Granted) // it asks before that anyway
		b.notNotified("b", sub)
		b.code(b.renew(token("a", 2)+flags, 4, 1000, 1), lua.Refused)
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
		flags, _ := flagsOf(b.set)
		holder, first, other := token("a", 1)+flags, token("b", 1)+flags, token("c", 1)+flags
		b.enqueue(holder, token("dead", 1)+flags, token("dead", 2)+flags, token("dead", 3)+flags, first, other)
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
		flags, policyArg := flagsOf(b.set)
		short := "a:1:1000.1000" + flags
		first, other := token("b", 1)+flags, token("c", 1)+flags
		b.code(b.eval(b.set.Acquire, acquireArgs(short, 1000, 0, policyArg, 0)), lua.Granted)
		for _, token := range []string{first, other} {
			b.code(b.eval(b.set.Acquire, acquireArgs(token, ttl, heartbeatTTL, policyArg, 0)), lua.Waiting)
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
	for what, happens := range map[string]func(b *bench, holder, flags string){
		"release":   func(b *bench, holder, _ string) { b.code(b.release(holder, 0), lua.Granted) },
		"heartbeat": func(b *bench, _, flags string) { b.heartbeat(0, token("x", 1)+flags) },
	} {
		t.Run(what, func(t *testing.T) {
			allAtTime(t, func(b *bench, pass func(time.Duration)) {
				flags, _ := flagsOf(b.set)
				holder := token("a", 1) + flags
				tokens := []string{token("gone", 1) + flags}
				subs := map[string]*redis.PubSub{}
				for i := range 12 {
					k := "k" + strconv.Itoa(i)
					subs[k] = b.listen(k)
					tokens = append(tokens, token(k, 1)+flags, token(k, 2)+flags)
				}
				b.enqueue(holder, tokens...)
				pass(ahead)
				happens(b, holder, flags)
				b.members(2)
				order := slices.SortedFunc(maps.Keys(subs), func(a, b string) int {
					if what == "release" {
						return cmp.Or(len(a)-len(b), strings.Compare(a, b))
					}
					return strings.Compare(a+":", b+":") // all lapse at once, and are swept by their names
				})
				for i, k := range order {
					if i < 9 { // before them somebody has gone
						b.notifiedToRetry(subs[k], token(k, 1)+flags, 10*(i+1)+1)
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
	for _, set := range lua.All {
		t.Run(set.Kind, func(t *testing.T) {
			onBothServers(t, set, func(b *bench) {
				flags, policyArg := flagsOf(set)
				holder, waits, gone := token("a", 1)+flags, token("b", 1)+flags, token("b", 2)+flags
				b.enqueue(holder, waits, gone)
				b.rdb.Del(ctx, b.keys[0])
				b.rdb.RPush(ctx, b.keys[0], "x")
				wrong := func(what string, s *lua.Script, args []any) {
					b.Helper()
					if v, err := b.run(s, args...).Result(); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
						b.Errorf("%s: %v, %v", what, v, err)
					}
				}
				ask := func(token string, heartbeatTTL int) []any {
					return acquireArgs(token, ttl, heartbeatTTL, policyArg, 0)
				}
				wrong("heartbeat", set.Heartbeat, append(heartbeatArgs(0, policyArg), waits))
				wrong("rejoin", set.Heartbeat, append(heartbeatArgs(1, policyArg), token("b", 3)+flags, 0))
				wrong("try", set.Acquire, ask(token("c", 1)+flags, 0))
				wrong("acquire", set.Acquire, ask(token("c", 2)+flags, heartbeatTTL))
				if set.Allow != nil {
					wrong("allow", set.Allow, allowArgs(token("c", 1)+"c1", policyArg))
				}
				wrong("renew", set.Fast.Renew, protocol.FastRenewArgs(nil, holder, ttl))
				wrong("renew, in full", set.Renew, renewArgs(holder, ttl, 0))
				wrong("inspect", set.Inspect, protocol.InspectArgs(nil, protocol.InspectHolders, 0, 10, ""))
				if set.RaiseFence != nil {
					wrong("raise_fence", set.RaiseFence, protocol.RaiseFenceArgs(nil, holder, int64(1), settings, 0))
				}
				wrong("release of the lease", set.Release, releaseArgs(holder, 0, 0))
				for _, tombstoneTTL := range []int64{0, 60_000} {
					for _, token := range []string{waits, gone, token("b", 3) + flags} {
						wrong("release", set.Release, releaseArgs(token, tombstoneTTL, 1))
					}
				}
				b.members(2)
				b.allExpireBut(0)

				b.rdb.Del(ctx, b.keys[0])
				b.code(b.eval(set.Acquire, ask(gone, 0)), lua.Tombstoned)
				b.code(b.eval(set.Acquire, ask(token("c", 3)+flags, 0)), lua.Granted)
			})
		})
	}
}

// allExpireBut expects that every key but one expires.
func (b *bench) allExpireBut(one int) {
	b.Helper()
	for i, k := range b.keys {
		if i != one && b.rdb.Exists(ctx, k).Val() == 1 {
			b.expires(i)
		}
	}
}

// TestRefusalFailsOnReadOnlyServer: a replica, or a primary that may not write, does not say that a lock is held, whatever the
// reason of the refusal. For the same reason a release does not say that there was no lease.
func TestRefusalFailsOnReadOnlyServer(t *testing.T) {
	t.Parallel()
	ask := func(b *bench, token string, policyArg string) any {
		return b.run(b.set.Acquire, acquireArgs(token, ttl, 0, policyArg, 0)...).Err()
	}
	type refusal struct {
		what   string
		before func(b *bench)
		asks   func(b *bench) any // an error
	}
	list := map[*lua.Set][]refusal{
		lua.RWLock: {
			{"a read behind a waiting writer", func(b *bench) {
				b.listen("w")
				b.wantAcquire(lua.Granted, rwToken("a", 1, "r"), 0)
				b.wantAcquire(lua.Waiting, rwToken("w", 1, "w"), heartbeatTTL)
			}, func(b *bench) any { return ask(b, rwToken("b", 1, "r"), "") }},
			{"a write beside a reader", func(b *bench) { b.wantAcquire(lua.Granted, rwToken("a", 1, "r"), 0) },
				func(b *bench) any { return ask(b, rwToken("b", 1, "w"), "") }},
			{"an upgrade beside another", func(b *bench) {
				b.wantAcquire(lua.Granted, rwToken("a", 1, "r"), 0)
				b.wantAcquire(lua.Granted, rwToken("b", 1, "r"), 0)
				b.code(b.convert(rwToken("a", 2, "u"), rwToken("a", 1, "r"), heartbeatTTL), lua.Waiting)
			}, func(b *bench) any { return ask(b, rwToken("b", 2, "u"), rwToken("b", 1, "r")) }},
			{"an upgrade beside a reader", func(b *bench) {
				b.wantAcquire(lua.Granted, rwToken("a", 1, "r"), 0)
				b.wantAcquire(lua.Granted, rwToken("b", 1, "r"), 0)
			}, func(b *bench) any { return ask(b, rwToken("b", 2, "u"), rwToken("b", 1, "r")) }},
			{"an upgrade of nothing", func(*bench) {}, func(b *bench) any { return ask(b, rwToken("b", 2, "u"), rwToken("b", 1, "r")) }},
			{"a downgrade of nothing", func(*bench) {}, func(b *bench) any { return ask(b, rwToken("b", 2, "d"), rwToken("b", 1, "w")) }},
			{"a downgrade of a read", func(b *bench) { b.wantAcquire(lua.Granted, rwToken("b", 1, "r"), 0) },
				func(b *bench) any { return ask(b, rwToken("b", 2, "d"), rwToken("b", 1, "r")) }},
		},
		lua.Semaphore: {
			{"more than there are", func(b *bench) { b.semaphoreAcquire(lua.Granted, three, permitToken("a", 1, "h", 1), 0) },
				func(b *bench) any { return ask(b, permitToken("b", 1, "h", 4), three) }},
			{"more than are left", func(b *bench) { b.semaphoreAcquire(lua.Granted, three, permitToken("a", 1, "h", 2), 0) },
				func(b *bench) any { return ask(b, permitToken("b", 1, "h", 2), three) }},
			{"a limit that was given up", func(b *bench) {
				b.semaphoreAcquire(lua.Granted, three, permitToken("a", 1, "h", 1), 0)
				b.eval(b.set.Release, releaseArgs(permitToken("b", 1, "h", 1), 60_000, 1))
			}, func(b *bench) any {
				return b.run(b.set.Limit, limitArgs(three, 4, permitToken("b", 1, "h", 1))...).Err()
			}},
		},
	}
	for _, set := range lua.All {
		flags, policyArg := flagsOf(set)
		if set.Allow != nil {
			allow := func(b *bench) any {
				return b.run(set.Allow, allowArgs(permitToken("b", 1, "c", 1), "0:3:60000")...).Err()
			}
			list[set] = append(list[set],
				refusal{"somebody waits for a window", func(b *bench) {
					b.listen("w")
					b.eval(set.Acquire, allowArgs(permitToken("a", 1, "c", 2), "0:3:60000"))
					b.eval(set.Acquire, acquireArgs(permitToken("w", 1, "c", 2), ttl, heartbeatTTL, "0:3:60000", 0))
				}, allow})
		}
		list[set] = append(list[set], refusal{"it is held", func(b *bench) { b.enqueue(token("a", 1) + flags) },
			func(b *bench) any { return ask(b, token("b", 1)+flags, policyArg) }},
			refusal{"somebody waits", func(b *bench) {
				b.listen("w")
				b.enqueue(token("a", 1)+flags, token("w", 1)+flags)
			}, func(b *bench) any { return ask(b, token("b", 1)+flags, policyArg) }},
			refusal{"it has a tombstone", func(b *bench) {
				b.eval(set.Release, releaseArgs(token("b", 1)+flags, 60_000, 1))
			}, func(b *bench) any { return ask(b, token("b", 1)+flags, policyArg) }},
			refusal{"a release of nothing", func(*bench) {}, func(b *bench) any {
				return b.run(set.Release, releaseArgs(token("b", 1)+flags, 0, 0)...).Err()
			}})
		t.Run(set.Kind, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, redistest.Start(t).Client(), set)
			do := func(args ...any) {
				t.Helper()
				must.OK(t, b.rdb.Do(ctx, args...).Err())
			}
			for _, c := range list[set] {
				c.before(b)
				do("replicaof", "127.0.0.1", "1")
				if err, _ := c.asks(b).(error); !redis.HasErrorPrefix(err, "READONLY") {
					t.Errorf("%s: %v", c.what, err)
				}
				do("replicaof", "no", "one")
				changes := b.changes()
				_ = c.asks(b)
				if n := b.changes() - changes; strings.Contains(c.what, "nothing") && n != 0 {
					t.Errorf("%s: %d changes for the replicas", c.what, n)
				}
				do("flushall")
			}
		})
	}
}
