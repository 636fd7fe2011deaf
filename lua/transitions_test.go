package lua_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
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

// TestReleaseOfSeveral: tokens that nobody waits for any more are released together, whatever each of them has, and then the lock is granted to
// the next waiter.
func TestReleaseOfSeveral(t *testing.T) {
	t.Parallel()
	onServers(t, withHandOn, func(b *bench) {
		b.listen("b")
		for round, tombstone := range []int64{0, 60_000} {
			token := func(keeper string, serial int) string { return b.token(keeper, 10*round+serial) }
			given, next := []any{token("a", 2), token("a", 1), token("a", 3), token("a", 4)}, token("b", 1)
			b.enqueue(token("a", 1), token("a", 2), token("a", 3), next) // a4 has nothing
			args := releaseArgs(given[0].(string), tombstone, 1)
			b.code(b.eval(b.set.Release, append(args, given[1:]...)), lua.Granted)
			waiters, _ := b.queue()
			check.That(b, len(waiters) == 0, "%v still wait", waiters)
			for _, token := range given {
				want := lua.Refused // by next
				if tombstone > 0 {
					want = lua.Tombstoned
				}
				b.code(b.acquire(token.(string), 0), want)
			}
			b.code(b.release(next, 0), lua.Granted)

			b.enqueue(token("b", 2), token("a", 5), token("a", 6)) // none of them has a lease
			args = releaseArgs(token("a", 7), tombstone, 1)
			b.code(b.eval(b.set.Release, append(args, token("a", 6), token("a", 5))), lua.Left)
			b.code(b.release(token("b", 2), 0), lua.Granted)
		}
	})
}

// notifiedToRetry expects one message, which tells this request to retry in so many ms.
func (b *bench) notifiedToRetry(sub *redis.PubSub, token string, ms int) {
	b.Helper()
	got, want := b.message(sub), []string{strings.Split(token, ":")[1], strconv.Itoa(-ms)}
	must.That(b, fmt.Sprint(got) == fmt.Sprint(want), "message %v, want %v", got, want)
}

// Where readers hold the lock, it frees up by itself when the last of their leases ends. An upgrade does not wait for its own
// lease.
func TestHeadNotifiedOfRemainingReader(t *testing.T) {
	t.Parallel()
	atTimeOf(t, lua.RWLock, func(b *bench, pass func(time.Duration)) {
		var readers []string
		for i := range int64(4) {
			readers = append(readers, rwToken("a", int(i), "r"))
			b.wantAcquire(lua.Granted, readers[i], 0)
			b.endsIn(readers[i], (i+1)*900)
		}
		writer, upgrade := rwToken("b", 1, "w"), rwToken("c", 2, "u1")
		b.wantAcquire(lua.Waiting, writer, heartbeatTTL)
		sub := b.listen("b")
		b.code(b.release(readers[0], 0), lua.Granted) // others last longer
		b.notNotified("b", sub)
		b.code(b.release(readers[3], 0), lua.Granted)
		b.notifiedToRetry(sub, writer, 2700)
		pass(100 * time.Millisecond)
		b.code(b.release(readers[2], 0), lua.Granted)
		b.notifiedToRetry(sub, writer, 1700)

		b.rdb.FlushAll(ctx)
		origin := rwToken("c", 1, "r")
		for i, r := range []string{origin, readers[0], readers[1]} {
			b.wantAcquire(lua.Granted, r, 0)
			b.endsIn(r, []int64{40_000, 1000, ttl}[i])
		}
		b.upgrade(lua.Waiting, upgrade, origin)
		sub = b.listen("c")
		b.code(b.release(readers[1], 0), lua.Granted)
		b.notifiedToRetry(sub, upgrade, 1000)
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
		b.endsIn(holder, 1000)
		sub := b.listen("b")
		b.heartbeat(0, other)
		b.notifiedToRetry(sub, first, 1000)
	})
}

// TestHeartbeatsOfMany: whichever waiters the server does not know, it says so of them alone, prolongs the heartbeats of the others, and names
// the first of those in the queue.
func TestHeartbeatsOfMany(t *testing.T) {
	t.Parallel()
	allAtTime(t, func(b *bench, pass func(time.Duration)) {
		var tokens, joining []any
		for i := range 401 { // more than two batches
			token := b.token("b", i+1)
			tokens, joining = append(tokens, token), append(joining, token, 0)
		}
		b.listen("c")
		b.enqueue(b.token("a", 1), b.token("c", 1))
		b.heartbeat(protocol.HeartbeatRejoin, joining...)
		unknown := map[int]bool{}
		check := func(first int) {
			b.Helper()
			got := b.heartbeat(0, tokens...)
			want := []any{int64(lua.Waiting), got[1], got[2], got[3], int64(0), int64(first), int64(1)}
			_, lapses := b.queue()
			for i, token := range tokens {
				switch lapse := lapses[token.(string)]; {
				case unknown[i+1]:
					want = append(want, int64(i+1), int64(lua.Unknown), int64(0), int64(0))
					must.That(b, lapse == 0, "%s is back", token)
				default:
					must.That(b, lapse == got[1].(int64)+heartbeatTTL, "the heartbeat of %s lapses at %d, now is %d", token, lapse, got[1])
				}
			}
			must.That(b, slices.Equal(got, want), "reply %v, want %v", got, want)
		}
		check(1) // at the same ms
		pass(time.Millisecond)
		check(1)
		for _, gone := range []struct{ waiter, first int }{{401, 1}, {250, 1}, {1, 2}, {2, 3}} {
			token := tokens[gone.waiter-1].(string)
			must.OK(b, b.rdb.ZRem(ctx, b.keys[2], token, "+"+token).Err())
			unknown[gone.waiter] = true
			pass(time.Millisecond)
			check(gone.first)
		}
	})
}

// After the server's clock was set back, a lease would last too long. A heartbeat cuts it to its ttl.
func TestHeadNotifiedOfLeaseCutToTTL(t *testing.T) {
	t.Parallel()
	allAtTime(t, func(b *bench, pass func(time.Duration)) {
		short := "a.5:1:1000.1000" + b.flags
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
					return strings.Compare(a+way+":", b+way+":") // all lapse at once, and are swept by their names
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
			{"renew", set.Fast.Renew, []any{holder, ttl}},
			{"renew, in full", set.Renew, renewArgs(holder, ttl)},
			{"inspect", set.Inspect, []any{protocol.InspectHolders, 0, 10, ""}},
			{"raise_fence", set.RaiseFence, []any{holder, int64(1), int64(metadataTTL), 0}},
			{"downgrade", set.Downgrade, downgradeArgs(holder, 1, "")},
			{"release of the lease", set.Release, releaseArgs(holder, 0, 0)},
			{"release of a waiter", set.Release, releaseArgs(waits, 0, 1)},
			{"release of the waiter that rejoined", set.Release, releaseArgs(b.token("b", 3), 0, 1)},
			{"release of a waiter, to tombstone", set.Release, releaseArgs(gone, 60_000, 1)},
		} {
			if c.script == nil {
				continue
			}
			v, err := b.run(c.script, c.args...).Result()
			check.That(b, err != nil && strings.Contains(err.Error(), "WRONGTYPE"), "%s: %v, %v", c.what, v, err)
		}
		b.members(2)
		b.allExpireBut(0)

		b.rdb.Del(ctx, b.keys[0])
		b.code(b.acquire(gone, 0), lua.Tombstoned)
		b.code(b.acquire(b.token("c", 3), 0), lua.Granted)
	})
}

// TestPlaceAheadOfClock: the server has lost its data and its clock was set back, so a waiter rejoins at a place ahead of it. Who arrives
// then is behind the waiter; also if the clock is set back after it has rejoined.
func TestPlaceAheadOfClock(t *testing.T) {
	t.Parallel()
	onServers(t, lua.All, func(b *bench) {
		waits, newcomer := b.token("b", 1), b.token("c", 1)
		b.enqueue(b.token("a", 1), waits)
		at := func(token string) float64 { return b.rdb.ZScore(ctx, b.keys[2], token).Val() }
		place := at(waits) + 1.8e9
		b.rdb.Del(ctx, b.keys[2])
		b.heartbeat(1, waits, int64(place))
		b.acquire(newcomer, heartbeatTTL)
		check.That(b, at(waits) == place && at(newcomer) > place, "places %.0f and %.0f, want from %.0f on", at(waits), at(newcomer), place)

		b.rdb.Del(ctx, b.keys[2])
		b.rdb.HDel(ctx, b.keys[1], "ticket")
		b.heartbeat(1, waits, int64(place-3.6e9))
		last, _ := b.rdb.HGet(ctx, b.keys[1], "ticket").Float64()
		check.That(b, last > 0 && last >= at(waits), "the last ticket is %.0f, and a waiter has %.0f", last, at(waits))
	})
}

// TestKeyWithoutExpiry: somebody has taken the expiry of the lock's key away. A renewal sets it again, as does whoever finds the lock held:
// to the ttl of the lease that is in the key, or to what it was extended to. What another library has written lasts for ever.
func TestKeyWithoutExpiry(t *testing.T) {
	t.Parallel()
	onServers(t, lua.All, func(b *bench) {
		holder, waits := b.token("a", 1), b.token("b", 1)
		b.code(b.acquire(holder, 0), lua.Granted)
		heals := func(what string, most time.Duration, f func()) {
			b.Helper()
			must.That(b, b.rdb.Persist(ctx, b.keys[0]).Val(), "%s: there was no expiry", what)
			f()
			left := b.rdb.PTTL(ctx, b.keys[0]).Val()
			check.That(b, left > most-10*time.Second && left <= most, "%s: the key is left for %v, want %v", what, left, most)
		}
		const longer = ttl + 2000 // than what the lease has already
		heals("the fast renewal", longer*time.Millisecond, func() { b.code(b.renew(holder, 1, longer-1000), lua.Granted) })
		heals("the renewal", longer*time.Millisecond, func() { b.code(b.renew(holder, 2, longer), lua.Granted) })
		if !b.set.OneHolder {
			return // its leases have ends of their own
		}
		heals("a repeated request", ttl*time.Millisecond, func() { b.code(b.acquire(holder, 0), lua.Granted) })
		asks := func(what string, f func() any) {
			heals(what, longer*time.Millisecond, func() {
				ms, _ := f().(int64)
				check.That(b, ms > 0 && ms <= longer, "%s: is told to retry in %d ms", what, ms)
			})
		}
		asks("a try", func() any { return b.acquire(b.token("c", 1), 0)[2] })
		asks("a waiter", func() any { return b.acquire(waits, heartbeatTTL)[5] })
		asks("a waiter with a deadline", func() any {
			return b.eval(b.set.Acquire, acquireArgs(b.token("b", 2), ttl, heartbeatTTL, b.policyArg, 60_000))[5]
		})
		asks("a heartbeat", func() any { return b.heartbeat(0, waits)[3] })
		b.code(b.renew(holder, 2, 3_600_000), lua.Granted)
		heals("a heartbeat beside an extended lease", time.Hour, func() { b.heartbeat(0, waits) })

		b.rdb.Set(ctx, b.keys[0], "theirs", 0)
		check.That(b, b.acquire(b.token("c", 2), 0)[2] == int64(0), "a try is told when a lock without an expiry ends")
		b.heartbeat(0, waits)
		b.holder("theirs")
		left := b.rdb.PTTL(ctx, b.keys[0]).Val()
		check.That(b, left == -1, "the key of another library expires in %v", left)
	})
}

// complete turns a lease into a record, once, only for the token that holds it, and also when memory is full.
func TestCompleteStoresRecord(t *testing.T) {
	t.Parallel()
	onBothServers(t, lua.Once, func(b *bench) {
		complete := func(token string, ms int64, want int) {
			b.Helper()
			b.code(b.eval(lua.Once.Complete, []any{token, ms}), want)
		}
		lies := func(want string, least, most time.Duration) {
			b.Helper()
			got, left := b.rdb.Get(ctx, b.keys[0]).Val(), b.rdb.PTTL(ctx, b.keys[0]).Val()
			check.That(b, got == want && left <= most && left > least, "%q for %v; want %q for %v to %v", got, left, want, least, most)
		}
		a, c := token("a", 1), token("c", 1)
		complete(a, 50_000, lua.Refused) // nothing is held
		lies("", -time.Minute, 0)
		b.acquire(a, 0)
		complete(c, 50_000, lua.Refused)
		lies(a, 25*time.Second, 30*time.Second)
		_ = b.rdb.ConfigSet(ctx, "maxmemory", "1").Err() // the embedded server has no such thing
		complete(a, 50_000, lua.Granted)
		_ = b.rdb.ConfigSet(ctx, "maxmemory", "0").Err()
		lies("done:"+a, 45*time.Second, 50*time.Second)
		complete(a, 3_600_000, lua.Granted) // a repeated one
		lies("done:"+a, 45*time.Second, 50*time.Second)
		b.rdb.Persist(ctx, b.keys[0])
		complete(a, 50_000, lua.Granted)
		lies("done:"+a, 45*time.Second, 50*time.Second)
		b.code(b.renew(a, 1, 60_000), lua.Refused)
		b.code(b.release(a, 0), lua.Refused)
		b.code(b.acquire(c, 0), lua.Refused)
		lies("done:"+a, 45*time.Second, 50*time.Second)
		b.code(b.release("done:"+a, 0), lua.Granted) // how it is deleted
		lies("", -time.Minute, 0)
		b.rdb.LPush(ctx, b.keys[0], "foreign")
		err := b.run(lua.Once.Complete, a, 1000).Err()
		check.That(b, err != nil, "a list was taken for a lease")
	})
}

func (b *bench) raiseFence(token string, least, up int64) []any {
	b.Helper()
	return b.eval(b.set.RaiseFence, []any{token, least, int64(metadataTTL), up})
}

// The embedded server does not report an uptime.
func TestRaiseFenceNeedsMinUptime(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := newBench(t, redistest.Connect(s), lua.Redlock)
	holder := token("a", 1)
	fence := b.acquire(holder, 0)[1].(int64)
	got := b.raiseFence(holder, fence+time.Hour.Microseconds(), time.Hour.Milliseconds())
	ran, ok := got[1].(int64)
	check.That(t, got[0] == int64(lua.Unknown) && ok && ran >= 0 && ran <= 60000, "%v from a server that was just started", got)
	s.Await("yes", func(context.Context, redistest.Client) (string, error) {
		if b.raiseFence(holder, 0, 1000)[0] == int64(lua.Granted) {
			return "yes", nil
		}
		return "", nil
	})
	last := b.raiseFence(holder, 0, 0)[1]
	check.That(t, last == fence, "a refusal has moved the fence from %d to %v", fence, last)
}

var notice = protocol.BreakNotice(protocol.Breaker{By: "ops", Reason: "stuck"})

// breakToken breaks a token and expects this code, whether its keeper was told, and that there is no more to admit.
func (b *bench) breakToken(token string, code, told int) {
	b.Helper()
	got := b.eval(b.set.Break, []any{token, int64(metadataTTL), 60_000, b.policyArg, notice})
	want := fmt.Sprint([]any{code, told, 0})
	must.That(b, fmt.Sprint(got) == want, "break returned %v, want %s", got, want)
}

func TestBreakEndsLeaseAndAdmits(t *testing.T) {
	t.Parallel()
	allAtTime(t, func(b *bench, pass func(time.Duration)) {
		holder, first, second := b.token("a", 1), b.token("b", 1), b.token("b", 2)
		b.enqueue(holder, first, second)
		ofHolder, ofWaiters := b.listen("a"), b.listen("b")
		b.breakToken(holder, lua.Granted, 1)
		if got := strings.Join(b.message(ofHolder), " "); got != "1 "+notice {
			b.Errorf("the holder was told %q", got)
		}
		if got := b.message(ofWaiters); len(got) < 2 || got[0] != strings.Split(first, ":")[1] || strings.HasPrefix(got[1], "-") {
			b.Errorf("the first waiter was told %q", got)
		}
		b.code(b.renew(holder, 1, ttl), lua.Refused)
		b.breakToken(holder, lua.Refused, 0) // a copy that comes late
		b.notNotified("a", ofHolder)

		// A copy of the request is refused for a minute.
		again := acquireArgs(holder, ttl, heartbeatTTL, b.policyArg, 0)
		b.code(b.eval(b.set.Acquire, again), lua.Tombstoned)
		b.code(b.renew(first, 1, ttl), lua.Granted)
		pass(59 * time.Second)
		b.code(b.eval(b.set.Acquire, again), lua.Tombstoned)
	})
}

// TestNoticeStaysBesideTombstone checks that inspect finds the notice of a break, also after a release of the token has written its
// tombstone anew, and not those of others.
func TestNoticeStaysBesideTombstone(t *testing.T) {
	t.Parallel()
	allAtTime(t, func(b *bench, pass func(time.Duration)) {
		holder, waiter, other := b.token("a", 1), b.token("b", 1), b.token("c", 1)
		notices := func(of, want string) {
			b.Helper()
			got := fmt.Sprint(b.inspect(protocol.InspectBreak, 0, 500, of))
			check.That(b, got == want, "inspect of %s returned %s, want %s", of, got, want)
		}
		b.enqueue(holder, waiter, other)
		notices(holder, "[0]")
		b.breakToken(waiter, lua.Left, 0)
		b.breakToken(holder, lua.Granted, 0)
		notices(holder, "[1 "+notice+"]")
		pass(time.Second)
		b.code(b.release(holder, 60_000), lua.Refused)
		b.release(other, 60_000)
		notices(holder, "[1 "+notice+"]")
		notices(waiter, "[1 "+notice+"]")
		notices(other, "[0]")
		pass(59*time.Second + 500*time.Millisecond)
		notices(holder, "[1 "+notice+"]")
		b.code(b.acquire(holder, heartbeatTTL), lua.Tombstoned)
	})
}

func TestInspectWritesNothing(t *testing.T) {
	t.Parallel()
	onServers(t, []*lua.Set{lua.Mutex, lua.Fair, lua.Redlock}, func(b *bench) {
		if got := b.inspect(protocol.InspectHolders, 0, 10, ""); len(got) != 2 || got[0] != int64(0) || got[1] != int64(0) {
			b.Errorf("of nothing: %v", got)
		}
		if got := b.inspect(protocol.InspectWaiters, 0, 10, ""); len(got) != 1 {
			b.Errorf("of nobody: %v", got)
		}
		if keys := b.rdb.Keys(ctx, "*").Val(); len(keys) != 0 {
			b.Errorf("looking has left %v", keys)
		}
		fence := b.acquire(token("a", 1), 0)[1]
		var places []any
		for i := range 3 {
			places = append(places, b.acquire(token("b", i), heartbeatTTL)[3])
		}
		got := b.inspect(protocol.InspectHolders, 0, 10, "")
		if len(got) != 7 || got[0] != int64(1) || got[1] != int64(1) || got[2] != token("a", 1) || got[3] != fence || got[4].(int64) <= 0 {
			b.Errorf("the holder: %v", got)
		}
		got = b.inspect(protocol.InspectWaiters, 0, 2, "")
		if len(got) != 9 || got[1] != token("b", 0) || got[2] != places[0] || got[5] != token("b", 1) || got[8].(int64) <= 0 {
			b.Errorf("the first two: %v", got)
		}
		got = b.inspect(protocol.InspectWaiters, places[1].(int64), 2, "")
		check.That(b, len(got) == 5 && got[1] == token("b", 2), "the last: %v", got)
		b.rdb.Set(ctx, b.keys[0], "foreign", time.Minute)
		if got := b.inspect(protocol.InspectHolders, 0, 10, ""); got[2] != "foreign" || got[3] != int64(0) {
			b.Errorf("a foreign holder: %v", got)
		}
	})
}
