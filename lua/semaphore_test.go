package lua_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// Limits as they are passed to scripts: three at once; three in a second; both.
const (
	three      = "3:0:0"
	perSecond  = "0:3:1000"
	twoAndFour = "2:4:1000"
)

// permitToken returns a token for n permits: h, held; c, by the clock; hc, both.
func permitToken(keeper string, serial int, flags string, n int) string {
	return token(keeper, serial) + flags + strconv.Itoa(n)
}

// onSem runs a test of the semaphore on both servers. After it, the counts must be right and every key must have an expiry.
func onSem(t *testing.T, test func(b *bench)) {
	onBothServers(t, lua.Semaphore, func(b *bench) {
		test(b)
		b.checkCounts()
		b.allExpire()
	})
}

// semAtTime runs a test of the semaphore on the embedded server, whose clock only the test moves.
func semAtTime(t *testing.T, test func(b *bench, pass func(time.Duration))) {
	atTimeOf(t, lua.Semaphore, func(b *bench, pass func(time.Duration)) {
		test(b, pass)
		b.checkCounts()
	})
}

// semaphoreAcquire acquires with these limits, expects a reply code, and returns what follows it.
func (b *bench) semaphoreAcquire(want int, limits, token string, heartbeatTTL int64) []any {
	b.Helper()
	got := b.eval(b.set.Acquire, acquireArgs(token, ttl, heartbeatTTL, limits, 0))
	b.code(got, want)
	b.checkCounts()
	return got[1:]
}

// semaphoreRelease releases and expects a reply code; cancel is the argument.
func (b *bench) semaphoreRelease(want int, token string, cancel int) {
	b.Helper()
	got := b.eval(b.set.Release, releaseArgs(token, 0, cancel))
	b.code(got, want)
	must.That(b, got[1].(int64)&1 == 0, "reply %v: there is more to admit", got)
	b.checkCounts()
}

// semaphoreHeartbeat sends the heartbeats of a keeper with these limits.
func (b *bench) semaphoreHeartbeat(limits string, rejoin int, rest ...any) []any {
	b.Helper()
	got := b.eval(b.set.Heartbeat, append(heartbeatArgs(rejoin, limits), rest...))
	b.code(got, lua.Waiting)
	b.checkCounts()
	return got
}

// limit reads the limits, and sets n unless it is 0. It checks the reply, more included.
func (b *bench) limit(limits string, n int, want ...int64) {
	b.Helper()
	got := b.eval(b.set.Limit, limitArgs(limits, n, ""))
	b.code(got, lua.Granted)
	b.checkCounts()
	var numbers []int64
	for _, x := range got[1:] {
		numbers = append(numbers, x.(int64))
	}
	if want = append(want, 0); !slices.Equal(numbers, want) {
		b.Fatalf("held, at once, spent, in a window, more, pause: %v, want %v", numbers, want)
	}
}

// permitsOf returns the number at a token's end.
func permitsOf(token string) int {
	i := len(token)
	for i > 0 && token[i-1] >= '0' && token[i-1] <= '9' {
		i--
	}
	n, _ := strconv.Atoi(token[i:])
	return n
}

// checkCounts expects that the counts match the members of the key, or that it has neither and only @tokens for one permit, and that
// there is a fence for each lease and each @token and for nothing else. The fence of permits without a lease can be when they were taken.
func (b *bench) checkCounts() {
	b.Helper()
	list := b.rdb.ZRangeWithScores(ctx, b.keys[0], 0, -1).Val()
	used, spent, counts := 0, 0, map[string]int{}
	fences, owners, implied := map[string]bool{}, map[string]bool{}, []string{}
	for _, z := range list {
		member := z.Member.(string)
		switch {
		case member == "used" || member == "spent":
			counts[member] = int(-z.Score)
			must.That(b, z.Score < 0, "%s is %v", member, z.Score)
		case member[0] == '#':
			fences[member[1:]] = true
		case member[0] == '@':
			spent += permitsOf(member)
			if !strings.Contains(strings.SplitN(member, ".", 2)[1], "h") {
				owners[member[1:]] = true
				implied = append(implied, member[1:])
			}
		case member[0] != '+':
			used += permitsOf(member)
			owners[member] = true
		}
	}
	for _, token := range implied {
		fences[token] = true
	}
	if len(counts) == 0 && spent == len(list) {
		counts["spent"] = spent // ZCARD
	}
	must.That(b, counts["used"] == used && counts["spent"] == spent,
		"counts %v, but %d are held and %d away: %v", counts, used, spent, list)
	must.That(b, len(fences) == len(owners), "fences of %v, leases and grants of %v", fences, owners)
	for token := range owners {
		must.That(b, fences[token], "%s has no fence", token)
	}
}

func TestWaiterAboveLoweredLimitNotified(t *testing.T) {
	t.Parallel()
	onSem(t, func(b *bench) {
		const five = "5:0:0"
		held := permitToken("a", 1, "h", 5)
		b.semaphoreAcquire(lua.Granted, five, held, 0)
		sub := b.listen("b")
		first, second, third, fourth := permitToken("b", 1, "h", 4), permitToken("b", 2, "h", 2), permitToken("b", 3, "h", 5), permitToken("b", 4, "h", 3)
		for _, x := range []string{first, second, third, fourth} {
			b.semaphoreAcquire(lua.Waiting, five, x, heartbeatTTL)
		}
		b.limit(five, 3, 5, 3, 0, 0, 2)
		m := b.message(sub)
		check.That(b, len(m) == 2 && m[0] == "1" && m[1] == "-1", "message %v, want one to retry at once", m)
		b.waits(second, third, fourth)
		listed := map[int64]any{}
		got := b.semaphoreHeartbeat(five, 0, first, second, third, fourth)
		for i := 7; i+3 < len(got); i += 4 {
			listed[got[i].(int64)] = got[i+1]
		}
		check.That(b, len(listed) == 2 && listed[1] == int64(lua.AboveLimit) && listed[3] == int64(lua.AboveLimit) && got[5] == int64(2),
			"reply %v", got)
		b.waits(second, fourth)
		got = b.semaphoreHeartbeat(five, 1, first, 0)
		check.That(b, len(got) == 11 && got[8] == int64(lua.AboveLimit), "reply %v", got)
		b.waits(second, fourth)
		b.semaphoreRelease(lua.Granted, held, 0)
		b.notified(sub, second)
		b.waits(fourth)
	})
}

// TestExpiredPermitsSweptInBatches: twenty thousand of each, of which no script removes more than a few hundred.
func TestExpiredPermitsSweptInBatches(t *testing.T) {
	onSem(t, func(b *bench) {
		n := 20000
		if strings.HasSuffix(b.Name(), "embedded") {
			n = 2000 // it sorts them all, each time
		}
		limits := fmt.Sprintf("%d:%d:1000", n, n)
		fill := func(lease, taking float64) {
			b.rdb.Del(ctx, b.keys...)
			for from := 0; from < n; from += 1000 {
				var list []redis.Z
				for i := from; i < from+1000; i++ {
					x := permitToken("a", i, "hc", 1)
					list = append(list, redis.Z{Score: lease, Member: x}, redis.Z{Score: 1e15 + float64(i), Member: "#" + x}, redis.Z{Score: -1000 * taking, Member: "@" + x})
				}
				b.rdb.ZAdd(ctx, b.keys[0], list...)
			}
			b.rdb.ZAdd(ctx, b.keys[0], redis.Z{Score: float64(-n), Member: "used"}, redis.Z{Score: float64(-n), Member: "spent"})
			b.rdb.PExpire(ctx, b.keys[0], time.Minute)
			b.checkCounts()
		}
		now := float64(b.rdb.Time(ctx).Val().UnixMilli())
		fill(now-1, now-1002)
		size := b.rdb.ZCard(ctx, b.keys[0]).Val()
		scripts := 0
		for more := true; more; scripts++ {
			got := b.eval(b.set.Limit, limitArgs(limits, 0, ""))
			more = got[5] == int64(1)
			left := b.rdb.ZCard(ctx, b.keys[0]).Val()
			must.That(b, size-left <= 3*3*100+2, "one script took out %d entries", size-left)
			size = left
			must.That(b, scripts <= n/100, "%d entries are left after %d scripts", left, scripts)
		}
		b.limit(limits, 0, 0, int64(n), 0, int64(n), 0)
		check.That(b, size == 0, "%d entries are left", size)

		// The reply to a try says that there is more to sweep, until there is room.
		now = float64(b.rdb.Time(ctx).Val().UnixMilli())
		fill(now-1, now-1002)
		x := permitToken("b", 1, "hc", 1000)
		for scripts = 1; ; scripts++ {
			got := b.eval(b.set.Acquire, acquireArgs(x, ttl, 0, limits, 0))
			if got[0] == int64(lua.Granted) {
				break
			}
			if b.code(got, lua.Refused); got[3] != int64(1) || scripts > 10 {
				b.Fatalf("reply %v to the try number %d", got, scripts)
			}
		}
		check.That(b, scripts == 4, // a hundred of each before it looks for room, and two hundred when it does
			"%d tries for 1000 permits that are over, want 4", scripts)
		b.checkCounts()
	})
}

func TestPermitsTakenBeforeClockSetBack(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		x, y := permitToken("a", 1, "c", 2), permitToken("a", 2, "c", 1)
		b.semaphoreAcquire(lua.Granted, perSecond, x, 0)
		pass(200 * time.Millisecond)
		b.semaphoreAcquire(lua.Granted, perSecond, y, 0)
		pass(-time.Hour)
		got := b.semaphoreAcquire(lua.Refused, perSecond, permitToken("b", 1, "c", 1), 0)
		check.That(b, got[1] == int64(1001), "in %v ms, want 1001", got[1])
		pass(1000 * time.Millisecond)
		b.limit(perSecond, 0, 0, 0, 3, 3, 0)
		pass(time.Millisecond)
		b.limit(perSecond, 0, 0, 0, 0, 3, 0)
		b.semaphoreAcquire(lua.Granted, perSecond, permitToken("b", 2, "c", 3), 0)
	})
	semAtTime(t, func(b *bench, pass func(time.Duration)) { // leases are cut by the next heartbeat
		x := permitToken("a", 1, "hc", 1)
		b.semaphoreAcquire(lua.Granted, twoAndFour, x, 0)
		pass(-time.Hour)
		b.semaphoreHeartbeat(twoAndFour, 0)
		left := b.end(x) - b.rdb.Time(ctx).Val().UnixMilli()
		check.That(b, left == ttl, "the lease lasts %d ms, its ttl is %d", left, ttl)
	})
}

func TestInspectPermits(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		x, y, z := permitToken("a", 1, "hc", 1), permitToken("a", 2, "hc", 1), permitToken("b", 1, "hc", 2)
		b.semaphoreAcquire(lua.Granted, twoAndFour, x, 0)
		pass(10 * time.Millisecond)
		b.semaphoreAcquire(lua.Granted, twoAndFour, y, 0)
		b.listen("b")
		b.semaphoreAcquire(lua.Waiting, twoAndFour, z, heartbeatTTL)
		b.semaphoreRelease(lua.Granted, x, 0)
		if got := b.inspect(protocol.InspectHolders, 0, 10, ""); len(got) != 7 || got[1] != int64(1) || got[2] != y || got[3] != b.fence(y) || got[4] != int64(ttl) {
			b.Errorf("holders %v", got)
		}
		if got := b.inspect(protocol.InspectWaiters, 0, 10, ""); len(got) != 5 || got[1] != z || got[4] != int64(heartbeatTTL) {
			b.Errorf("waiters %v", got)
		}
	})
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		x, y := permitToken("a", 1, "c", 1), permitToken("a", 2, "c", 2)
		b.semaphoreAcquire(lua.Granted, perSecond, x, 0)
		pass(10 * time.Millisecond)
		b.semaphoreAcquire(lua.Granted, perSecond, y, 0)
		got := b.inspect(protocol.InspectHolders, 0, 10, "")
		if len(got) != 12 || got[1] != int64(2) || got[2] != x || got[3] != b.fence(x) || got[4] != int64(991) || got[7] != y || got[9] != int64(1001) {
			b.Errorf("grants %v", got)
		}
		pass(991 * time.Millisecond)
		if got := b.inspect(protocol.InspectHolders, 0, 10, ""); len(got) != 7 || got[2] != y {
			b.Errorf("grants %v", got)
		}
	})
}

// TestInspectPagesOfPermitsByTheClock checks that those whose permits have not returned are listed from the oldest on, page by page,
// though some return between the pages, and several were granted in the same µs; with leases as well.
func TestInspectPagesOfPermitsByTheClock(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		const n = 23
		limits := protocol.LimitsArg(n, n, 1000)
		var want []string
		for i := range n {
			x := permitToken("a", i, "hc", 1)
			b.semaphoreAcquire(lua.Granted, limits, x, 0)
			want = append(want, x)
			if i%4 == 3 {
				pass(time.Millisecond)
			}
		}
		var got []string
		var removed []redis.Z
		place, last := int64(0), ""
		for {
			reply := b.inspect(protocol.InspectTaken, place, 5, last)
			for i := 2; i < len(reply); i += 5 {
				last, place = reply[i].(string), reply[i+3].(int64)
				got = append(got, last)
			}
			if reply[0].(int64) < 5 {
				break
			}
			if len(got) == 10 { // the oldest have returned, and the one that was listed last
				removed = b.rdb.ZRangeByScoreWithScores(ctx, b.keys[0], &redis.ZRangeBy{Min: "-inf", Max: "-10000000000000"}).Val()
				removed = slices.DeleteFunc(removed, func(z redis.Z) bool { return z.Member != "@"+got[0] && z.Member != "@"+got[9] })
				b.rdb.ZRem(ctx, b.keys[0], "@"+got[0], "@"+got[9])
			}
		}
		b.rdb.ZAdd(ctx, b.keys[0], removed...) // which are counted
		slices.Sort(want)
		sorted := slices.Clone(got)
		slices.Sort(sorted)
		if sorted = slices.Compact(sorted); !slices.Equal(sorted, want) {
			b.Errorf("listed %d of %d: %v", len(sorted), n, got)
		}
	})
}

// pause sets the pause, and expects so many ms of it.
func (b *bench) pause(limits string, ms, want int64) {
	b.Helper()
	got := b.eval(b.set.Limit, []any{int64(metadataTTL), limits, 0, "", ms})
	b.code(got, lua.Granted)
	must.That(b, got[6].(int64) == want, "reply %v, want a pause of %d ms", got, want)
	b.checkCounts()
}

// TestPauseIsNotShorterThanAsked: its end is kept in whole ms, and is rounded up.
func TestPauseIsNotShorterThanAsked(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		pass(700 * time.Microsecond)
		b.pause(perSecond, 3, 4)
		pass(2999 * time.Microsecond)
		b.semaphoreAcquire(lua.Refused, perSecond, permitToken("a", 1, "c", 1), 0)
		pass(301 * time.Microsecond)
		b.semaphoreAcquire(lua.Granted, perSecond, permitToken("a", 2, "c", 1), 0)
	})
}

// TestPauseCutAfterClockSetBack: it lasts for as long as was left of it, and not by as much longer as the clock was set back.
func TestPauseCutAfterClockSetBack(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(b *bench){
		"acquire": func(b *bench) {
			b.semaphoreAcquire(lua.Refused, perSecond, permitToken("a", 1, "c", 1), 0)
		},
		"heartbeat": func(b *bench) { b.semaphoreHeartbeat(perSecond, 0, permitToken("b", 1, "c", 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			semAtTime(t, func(b *bench, pass func(time.Duration)) {
				b.pause(perSecond, 4000, 4000)
				pass(3 * time.Second)
				b.pause(perSecond, 0, 1000)
				pass(-time.Hour)
				call(b)
				b.pause(perSecond, 0, 4000)
				pass(4 * time.Second)
				b.semaphoreAcquire(lua.Granted, perSecond, permitToken("a", 2, "c", 1), 0)
			})
		})
	}
}

// TestReadingLimitsWritesNothing: also in a pause, so that it can be read from a replica.
func TestReadingLimitsWritesNothing(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		b.pause(perSecond, 1000, 1000)
		before := b.rdb.HGetAll(ctx, b.keys[1]).Val()
		pass(2 * time.Second)
		b.pause(perSecond, 0, 0)
		after := b.rdb.HGetAll(ctx, b.keys[1]).Val()
		if len(before) != len(after) || before["limits"] != after["limits"] || !slices.Contains([]string{before["seq"]}, after["seq"]) {
			b.Errorf("the metadata was %v and is %v", before, after)
		}
	})
}

// TestHandOnKeepsLimitInForce: permits are handed on within the limit that SetLimit has left, whatever the callers' own is.
func TestHandOnKeepsLimitInForce(t *testing.T) {
	t.Parallel()
	onServers(t, []*lua.Set{lua.Semaphore}, func(b *bench) {
		const limits = "2:0:0"
		b.listen("w")
		for inForce, want := range map[int]int64{2: lua.Granted, 1: lua.Undecided} {
			b.rdb.FlushAll(ctx)
			own, other, waiter := b.token("a", 1), b.token("b", 1), b.token("w", 1)
			b.semaphoreAcquire(lua.Granted, limits, own, 0)
			b.semaphoreAcquire(lua.Granted, limits, other, 0)
			b.semaphoreAcquire(lua.Waiting, limits, waiter, heartbeatTTL)
			b.code(b.eval(b.set.Limit, limitArgs(limits, inForce, "")), lua.Granted)
			b.handOn(own, want)
		}
	})
}
