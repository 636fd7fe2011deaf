package lua_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// Limits as they are passed to scripts: three at once; three in a second; both.
const (
	three      = "3:0:0"
	perSecond  = "0:3:1000"
	twoAndFour = "2:4:1000"
)

// takenBefore is the largest score of an @token: minus a time in µs.
const takenBefore = "-10000000000000"

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
	return b.semaphoreAcquireWithin(want, limits, token, heartbeatTTL, 0)
}

func (b *bench) semaphoreAcquireWithin(want int, limits, token string, heartbeatTTL, maxWait int64) []any {
	b.Helper()
	got := b.eval(b.set.Acquire, acquireArgs(token, ttl, heartbeatTTL, limits, maxWait))
	b.code(got, want)
	b.checkCounts()
	return got[1:]
}

// semaphoreRelease releases and expects a reply code; cancel is the argument.
func (b *bench) semaphoreRelease(want int, token string, cancel int) {
	b.Helper()
	got := b.eval(b.set.Release, releaseArgs(token, 0, cancel))
	b.code(got, want)
	if got[1].(int64)&1 != 0 {
		b.Fatalf("reply %v: there is more to admit", got)
	}
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
			if z.Score >= 0 {
				b.Fatalf("%s is %v", member, z.Score)
			}
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
	if counts["used"] != used || counts["spent"] != spent {
		b.Fatalf("counts %v, but %d are held and %d away: %v", counts, used, spent, list)
	}
	if len(fences) != len(owners) {
		b.Fatalf("fences of %v, leases and grants of %v", fences, owners)
	}
	for token := range owners {
		if !fences[token] {
			b.Fatalf("%s has no fence", token)
		}
	}
}

// wantTaken expects these @tokens, in the order in which they were written.
func (b *bench) wantTaken(want ...string) {
	b.Helper()
	list := b.rdb.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{Key: b.keys[0], Start: "-inf", Stop: takenBefore, ByScore: true}).Val()
	slices.SortStableFunc(list, func(a, b redis.Z) int { return cmp.Compare(b.Score, a.Score) })
	var got []string
	for _, z := range list {
		got = append(got, strings.TrimPrefix(z.Member.(string), "@"))
	}
	if !slices.Equal(got, want) && len(got)+len(want) > 0 {
		b.Fatalf("permits of %v are taken, want %v", got, want)
	}
}

// leases expects leases of these tokens, expired or not.
func (b *bench) leases(want ...string) {
	b.Helper()
	got := b.rdb.ZRangeArgs(ctx, redis.ZRangeArgs{Key: b.keys[0], Start: "1", Stop: "900000000000000", ByScore: true}).Val()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) && len(got)+len(want) > 0 {
		b.Fatalf("leases of %v, want %v", got, want)
	}
}

// inForce expects these limits in the metadata: those of the last caller, and those in force.
func (b *bench) inForce(want string) {
	b.Helper()
	if got := b.rdb.HGet(ctx, b.keys[1], "limits").Val(); got != want {
		b.Fatalf("limits %q, want %q", got, want)
	}
}

func TestAcquireAndReleasePermits(t *testing.T) {
	t.Parallel()
	onSem(t, func(b *bench) {
		two, one, late := permitToken("a", 1, "h", 2), permitToken("b", 1, "h", 1), permitToken("b", 2, "h", 1)
		first := b.semaphoreAcquire(lua.Granted, three, two, 0)
		if ms := first[2].(int64) - first[1].(int64); ms != ttl || first[3] != int64(0) {
			b.Errorf("a lease of %d ms: %v", ms, first)
		}
		b.semaphoreAcquire(lua.Refused, three, permitToken("b", 9, "h", 2), 0)
		second := b.semaphoreAcquire(lua.Granted, three, one, heartbeatTTL)
		if first[0].(int64) >= second[0].(int64) || b.fence(one) != second[0] {
			b.Errorf("fences %v, %v", first, second)
		}
		b.leases(one, two)
		b.limit(three, 0, 3, 3, 0, 0, 0)
		if got := b.semaphoreAcquire(lua.Refused, three, late, 0); got[1] != int64(0) || got[2] != int64(0) {
			b.Errorf("the clock is said to bring some in %v ms", got[1])
		}
		if again := b.semaphoreAcquire(lua.Granted, three, two, 0); again[0] != first[0] {
			b.Errorf("repeated, fence %v became %v", first[0], again[0])
		}
		for _, n := range []int{4, 1_000_000_000} {
			if got := b.semaphoreAcquire(lua.AboveLimit, three, permitToken("c", n, "h", n), heartbeatTTL); len(got) != 0 {
				b.Errorf("reply %v", got)
			}
		}
		b.waits()
		b.semaphoreRelease(lua.Granted, two, 0)
		b.semaphoreRelease(lua.Refused, two, 0)
		b.semaphoreRelease(lua.Refused, permitToken("c", 1, "h", 3), 0)
		b.leases(one)
		b.limit(three, 0, 1, 3, 0, 0, 0)
		b.semaphoreRelease(lua.Granted, one, 1)
		if n := b.rdb.Exists(ctx, b.keys[0]).Val(); n != 0 {
			b.Error("the key is left when nothing is held")
		}
		b.inForce(three + " " + three)
	})
}

func TestPermitsGrantedInOrder(t *testing.T) {
	t.Parallel()
	onSem(t, func(b *bench) {
		held, heavy := permitToken("a", 1, "h", 1), permitToken("b", 1, "h", 3)
		l1, l2, l3, l4 := permitToken("b", 2, "h", 1), permitToken("c", 1, "h", 1), permitToken("b", 3, "h", 1), permitToken("c", 2, "h", 1)
		b.semaphoreAcquire(lua.Granted, three, held, 0)
		sb, sc := b.listen("b"), b.listen("c")
		for i, x := range []string{heavy, l1, l2, l3, l4} {
			if got := b.semaphoreAcquire(lua.Waiting, three, x, heartbeatTTL); got[3] != int64(i) {
				b.Errorf("%s: %v", x, got)
			}
		}
		b.semaphoreAcquire(lua.Refused, three, permitToken("d", 1, "h", 1), 0) // there is room, but somebody waits
		b.waits(heavy, l1, l2, l3, l4)
		b.semaphoreRelease(lua.Granted, held, 0)
		b.notified(sb, heavy)
		b.leases(heavy)
		b.notNotified("c", sc)
		b.semaphoreRelease(lua.Granted, heavy, 0)
		b.notified(sb, l1, l3)
		b.notified(sc, l2)
		b.waits(l4)
		b.semaphoreRelease(lua.Left, l4, 1)
		b.semaphoreRelease(lua.Granted, l2, 0)
		b.waits()
		b.leases(l1, l3)
	})
}

// TestPermitsHandedOn releases permits that others wait for, where the first waiter gets all that are free, with and without another
// lease beside it.
func TestPermitsHandedOn(t *testing.T) {
	t.Parallel()
	const two = "2:0:0"
	held, beside := permitToken("a", 1, "h", 1), permitToken("a", 2, "h", 1)
	first, second := permitToken("b", 1, "h", 1), permitToken("c", 1, "h", 1)
	for _, c := range []struct {
		name            string
		queued, release time.Duration // when the waiters are queued, and when a lease is released; the other lasts until 30 s
		want            []string      // the leases then
		toSecond        []string      // the message to the second waiter
	}{
		{"another lease lasts", 25 * time.Second, 26 * time.Second, []string{beside, first}, nil},
		{"another lease ends before the next heartbeat", 28 * time.Second, 28 * time.Second, []string{beside, first}, []string{"1", "-2000"}},
		{"another lease has ended", 29 * time.Second, 30 * time.Second, []string{first, second}, []string{"1", "fence"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			semAtTime(t, func(b *bench, pass func(time.Duration)) {
				b.semaphoreAcquire(lua.Granted, two, held, 0)
				b.semaphoreAcquire(lua.Granted, two, beside, 0)
				pass(c.queued)
				b.code(b.renew(held, 1, ttl, 0), lua.Granted)
				sb, sc := b.listen("b"), b.listen("c")
				b.semaphoreAcquire(lua.Waiting, two, first, heartbeatTTL)
				b.semaphoreAcquire(lua.Waiting, two, second, heartbeatTTL)
				pass(c.release - c.queued)
				b.semaphoreRelease(lua.Granted, held, 0)
				b.notified(sb, first)
				b.leases(c.want...)
				if c.toSecond == nil {
					b.notNotified("c", sc)
					return
				}
				got := b.message(sc)
				if c.toSecond[1] == "fence" {
					c.toSecond[1] = strconv.FormatInt(b.fence(second), 10)
				}
				if !slices.Equal(got, c.toSecond) {
					b.Errorf("message %v to the second waiter, want %v", got, c.toSecond)
				}
			})
		})
	}
}

func TestUndeliveredGrantRevoked(t *testing.T) {
	t.Parallel()
	onSem(t, func(b *bench) {
		held := permitToken("a", 1, "hc", 2)
		gone, there := permitToken("b", 1, "hc", 2), permitToken("c", 1, "hc", 1)
		b.semaphoreAcquire(lua.Granted, twoAndFour, held, 0)
		stale, sub := b.listen("b"), b.listen("c")
		b.semaphoreAcquire(lua.Waiting, twoAndFour, gone, heartbeatTTL)
		b.semaphoreAcquire(lua.Waiting, twoAndFour, there, heartbeatTTL)
		b.unsubscribe("b", stale)
		b.semaphoreRelease(lua.Granted, held, 0)
		b.notified(sub, there)
		b.waits()
		b.leases(there)
		b.wantTaken(held, there)
		b.limit(twoAndFour, 0, 1, 2, 3, 4, 0)
	})
}

func TestRefusalReportsRetryAfter(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		first, second := permitToken("a", 1, "c", 2), permitToken("a", 2, "c", 1)
		until := b.semaphoreAcquire(lua.Granted, perSecond, first, 0)
		if until[2].(int64)-until[1].(int64) != ttl {
			b.Errorf("a grant without a lease: %v", until)
		}
		pass(400 * time.Millisecond)
		b.semaphoreAcquire(lua.Granted, perSecond, second, 0)
		b.wantTaken(first, second)
		in := func(n int, ms int64) {
			b.Helper()
			got := b.semaphoreAcquire(lua.Refused, perSecond, permitToken("b", n, "c", n), 0)
			if got[1] != ms {
				b.Errorf("%d permits in %v ms, want %d", n, got[1], ms)
			}
		}
		in(1, 601)
		in(2, 601)
		in(3, 1001)
		b.listen("c")
		if got := b.semaphoreAcquire(lua.Waiting, perSecond, permitToken("c", 1, "c", 1), heartbeatTTL); got[4] != int64(601) {
			b.Errorf("retry in %v ms", got[4])
		}
		in(1, 601)
		in(2, 1001)
		in(3, 1602) // the permits of the one that is queued have to return as well
		b.waits(permitToken("c", 1, "c", 1))

		// Not a millisecond earlier, and one permit after the other.
		pass(600 * time.Millisecond)
		b.semaphoreHeartbeat(perSecond, 0, permitToken("c", 1, "c", 1))
		b.waits(permitToken("c", 1, "c", 1))
		in(1, 1)
		pass(time.Millisecond)
		got := b.semaphoreHeartbeat(perSecond, 0, permitToken("c", 1, "c", 1))
		if len(got) != 11 || got[8] != int64(lua.Granted) {
			b.Fatalf("reply %v", got)
		}
		b.wantTaken(second, permitToken("c", 1, "c", 1))
		b.semaphoreAcquire(lua.Granted, perSecond, permitToken("d", 1, "c", 1), 0)
		in(1, 400)
		pass(1001 * time.Millisecond)
		b.limit(perSecond, 0, 0, 0, 0, 3, 0)
		b.semaphoreAcquire(lua.Granted, perSecond, permitToken("d", 2, "c", 3), 0)
	})
}

func TestRefusedIfWaitIsTooLong(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		b.listen("b")
		b.semaphoreAcquire(lua.Granted, perSecond, permitToken("a", 1, "c", 3), 0)
		x := permitToken("b", 1, "c", 1)
		for maxWait, want := range map[int64]int{1: lua.Refused, 1000: lua.Refused, 1001: lua.Waiting, 5000: lua.Waiting} {
			got := b.semaphoreAcquireWithin(want, perSecond, x, heartbeatTTL, maxWait)
			if want == lua.Refused {
				if got[1] != int64(1001) {
					b.Errorf("in %v ms, want 1001", got[1])
				}
				b.waits()
				continue
			}
			b.waits(x)
			b.semaphoreRelease(lua.Left, x, 1)
		}
		b.wantTaken(permitToken("a", 1, "c", 3))
		b.semaphoreAcquireWithin(lua.Granted, "0:6:1000", x, heartbeatTTL, 1)
	})
}

func TestRetryAfterWithManyPermits(t *testing.T) {
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		const limits, n = "0:200:1000", 200
		for i := range n {
			b.semaphoreAcquire(lua.Granted, limits, permitToken("a", i, "c", 1), 0)
			pass(time.Millisecond)
		}
		for _, x := range []struct{ n, ms int64 }{{1, 801}, {50, 850}, {51, 851}, {200, 1000}} {
			got := b.semaphoreAcquire(lua.Refused, limits, permitToken("b", int(x.n), "c", int(x.n)), 0)
			if got[1] != x.ms {
				b.Errorf("%d permits in %v ms, want %d", x.n, got[1], x.ms)
			}
		}
		// In a long queue as well, if each waiter requests one.
		b.listen("c")
		for i := range 120 {
			b.semaphoreAcquire(lua.Waiting, limits, permitToken("c", i, "c", 1), heartbeatTTL)
		}
		if got := b.semaphoreAcquire(lua.Refused, limits, permitToken("b", 999, "c", 1), 0); got[1] != int64(801+120) {
			b.Errorf("behind 120 in %v ms, want %d", got[1], 801+120)
		}
	})
}

func TestOnlyUnusedWindowPermitsReturn(t *testing.T) {
	t.Parallel()
	onSem(t, func(b *bench) {
		for flags, limits := range map[string]string{"c": "0:3:60000", "hc": "3:3:60000"} {
			b.rdb.FlushDB(ctx)
			holds := flags == "hc"
			used, cancel := permitToken("a", 1, flags, 1), permitToken("a", 2, flags, 2)
			b.semaphoreAcquire(lua.Granted, limits, used, 0)
			b.semaphoreAcquire(lua.Granted, limits, cancel, 0)
			b.wantTaken(used, cancel)
			want := lua.Refused // a grant without a lease holds nothing
			if holds {
				want = lua.Granted
			}
			b.semaphoreRelease(want, used, 0)
			b.wantTaken(used, cancel)
			b.leases(map[bool][]string{true: {cancel}}[holds]...)
			sub := b.listen("b")
			waits := permitToken("b", 1, flags, 2)
			b.semaphoreAcquire(lua.Waiting, limits, waits, heartbeatTTL)
			b.semaphoreRelease(lua.Granted, cancel, 1)
			b.notified(sub, waits)
			b.wantTaken(used, waits)
			b.semaphoreRelease(lua.Refused, cancel, 1)
			b.wantTaken(used, waits)
		}
	})
}

func TestBothLimits(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		x, y, z := permitToken("a", 1, "hc", 2), permitToken("a", 2, "hc", 2), permitToken("a", 3, "hc", 1)
		b.semaphoreAcquire(lua.Granted, twoAndFour, x, 0)
		if got := b.semaphoreAcquire(lua.Refused, twoAndFour, z, 0); got[1] != int64(0) {
			b.Errorf("the clock is said to bring some in %v ms", got[1])
		}
		b.wantTaken(x)
		b.semaphoreRelease(lua.Granted, x, 0)
		b.semaphoreAcquire(lua.Granted, twoAndFour, y, 0)
		b.limit(twoAndFour, 0, 2, 2, 4, 4, 0)
		b.semaphoreRelease(lua.Granted, y, 0)
		if got := b.semaphoreAcquire(lua.Refused, twoAndFour, z, 0); got[1] != int64(1001) {
			b.Errorf("in %v ms", got[1])
		}
		b.leases()
		b.wantTaken(x, y)
		pass(1001 * time.Millisecond)
		b.semaphoreAcquire(lua.Granted, twoAndFour, z, 0)

		// The lease continues when the permit has returned by the clock, and the other way round.
		pass(1001 * time.Millisecond)
		b.limit(twoAndFour, 0, 1, 2, 0, 4, 0)
		b.leases(z)
	})
}

func TestExpiredLeaseKeepsWindowPermits(t *testing.T) {
	t.Parallel()
	const limits = "2:4:3600000"
	for what, ask := range map[string]func(b *bench, token string){
		"again": func(b *bench, token string) { b.semaphoreAcquire(lua.Granted, limits, token, 0) },
		"in_line": func(b *bench, token string) {
			b.listen("a")
			b.semaphoreHeartbeat(limits, 1, token, 0)
			b.waits()
		},
	} {
		t.Run(what, func(t *testing.T) {
			semAtTime(t, func(b *bench, pass func(time.Duration)) {
				x, y := permitToken("a", 1, "hc", 1), permitToken("b", 1, "hc", 2)
				b.semaphoreAcquire(lua.Granted, limits, x, 0)
				pass((ttl + 1) * time.Millisecond)
				b.semaphoreAcquire(lua.Granted, limits, y, 0) // sweeps the lease
				b.leases(y)
				b.wantTaken(x, y)
				b.semaphoreRelease(lua.Granted, y, 0)

				// It asks again, and takes its permit once.
				pass(time.Millisecond)
				ask(b, x)
				b.leases(x)
				b.wantTaken(y, x)
				b.limit(limits, 0, 1, 2, 3, 4, 0)
			})
		})
	}
}

func TestLateDuplicateRestoresNothing(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		const limits = "2:4:3600000"
		x, y := permitToken("a", 1, "hc", 1), permitToken("b", 1, "hc", 2)
		b.semaphoreAcquire(lua.Granted, limits, x, 0)
		pass((ttl + 1) * time.Millisecond)
		b.semaphoreAcquire(lua.Granted, limits, y, 0)
		b.semaphoreAcquire(lua.Refused, limits, x, 0) // there is no room at once, and its permit is away all the same
		b.wantTaken(x, y)
	})
}

func TestLatestCallersLimitsApply(t *testing.T) {
	t.Parallel()
	onSem(t, func(b *bench) {
		sub := b.listen("b")
		held := permitToken("a", 1, "h", 1)
		if got := b.semaphoreAcquire(lua.Granted, "1:0:0", held, 0); got[3] != int64(0) {
			b.Errorf("the first limits count as a change: %v", got)
		}
		b1, b2, b3 := permitToken("b", 1, "h", 1), permitToken("b", 2, "h", 1), permitToken("b", 3, "h", 1)
		for _, x := range []string{b1, b2, b3} {
			b.semaphoreAcquire(lua.Waiting, "1:0:0", x, heartbeatTTL)
		}

		// A caller with higher limits admits waiters, and comes after them.
		if got := b.semaphoreAcquire(lua.Refused, three, permitToken("c", 1, "h", 1), 0); got[2] != int64(2) {
			b.Errorf("more is %v, want 2", got)
		}
		b.notified(sub, b1, b2)
		b.inForce("3:0:0 3:0:0")
		b.waits(b3)

		// A caller with lower limits takes nothing away.
		if got := b.semaphoreAcquire(lua.Refused, "1:0:0", permitToken("c", 2, "h", 1), 0); got[2] != int64(2) {
			b.Errorf("more is %v, want 2", got)
		}
		b.leases(held, b1, b2)
		b.limit("1:0:0", 0, 3, 1, 0, 0, 0)
		b.semaphoreRelease(lua.Granted, held, 0)
		b.semaphoreRelease(lua.Granted, b1, 0)
		b.waits(b3)
		b.semaphoreRelease(lua.Granted, b2, 0)
		b.notified(sub, b3)
		b.semaphoreRelease(lua.Granted, b3, 0)
		if got := b.semaphoreAcquire(lua.Granted, three, permitToken("c", 3, "h", 3), heartbeatTTL); got[3] != int64(2) {
			b.Errorf("more is %v, want 2", got)
		}
	})
}

func TestSetLimit(t *testing.T) {
	t.Parallel()
	onSem(t, func(b *bench) {
		b.limit(three, 0, 0, 3, 0, 0, 0) // a look leaves nothing
		if n := b.rdb.Exists(ctx, b.keys...).Val(); n != 0 {
			b.Errorf("%d keys after a look", n)
		}
		b.limit(three, 5, 0, 5, 0, 0, 2)
		b.inForce("3:0:0 5:0:0")
		b.limit(three, 5, 0, 5, 0, 0, 0)
		held := permitToken("a", 1, "h", 3)
		b.semaphoreAcquire(lua.Granted, three, held, 0)
		b.inForce("3:0:0 5:0:0") // it holds against those who know what was known
		sub := b.listen("b")
		two, four, one := permitToken("b", 1, "h", 4), permitToken("b", 2, "h", 2), permitToken("b", 3, "h", 1)
		for _, x := range []string{two, four, one} {
			b.semaphoreAcquire(lua.Waiting, three, x, heartbeatTTL)
		}
		b.limit(three, 7, 7, 7, 0, 0, 2)
		b.notified(sub, two)
		b.waits(four, one)
		b.limit(three, 10, 10, 10, 0, 0, 2)
		b.notified(sub, four, one)

		// A lower limit: all leases continue, and a request above it is refused as such.
		b.limit(three, 2, 10, 2, 0, 0, 2)
		b.leases(held, two, four, one)
		b.semaphoreAcquire(lua.AboveLimit, three, permitToken("c", 1, "h", 3), heartbeatTTL)
		b.semaphoreAcquire(lua.Waiting, three, permitToken("c", 2, "h", 2), heartbeatTTL)
		b.semaphoreRelease(lua.Left, permitToken("c", 2, "h", 2), 1)
		b.semaphoreAcquire(lua.Refused, "4:0:0", permitToken("c", 4, "h", 4), 0) // whose caller knows another limit, which is in force then
		b.inForce("4:0:0 4:0:0")
	})
	onSem(t, func(b *bench) { // of both limits it is that of the window
		b.limit(twoAndFour, 9, 0, 2, 0, 9, 2)
		b.inForce("2:4:1000 2:9:1000")
		b.limit(perSecond, 5, 0, 2, 0, 5, 2)
		b.inForce("2:4:1000 2:5:1000")
	})
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
		if m := b.message(sub); len(m) != 2 || m[0] != "1" || m[1] != "-1" {
			b.Errorf("message %v, want one to retry at once", m)
		}
		b.waits(second, third, fourth)
		listed := map[int64]any{}
		got := b.semaphoreHeartbeat(five, 0, first, second, third, fourth)
		for i := 7; i+3 < len(got); i += 4 {
			listed[got[i].(int64)] = got[i+1]
		}
		if len(listed) != 2 || listed[1] != int64(lua.AboveLimit) || listed[3] != int64(lua.AboveLimit) || got[5] != int64(2) {
			b.Errorf("reply %v", got)
		}
		b.waits(second, fourth)
		got = b.semaphoreHeartbeat(five, 1, first, 0)
		if len(got) != 11 || got[8] != int64(lua.AboveLimit) {
			b.Errorf("reply %v", got)
		}
		b.waits(second, fourth)
		b.semaphoreRelease(lua.Granted, held, 0)
		b.notified(sub, second)
		b.waits(fourth)
	})
}

func TestSemaphoreHeartbeats(t *testing.T) {
	t.Parallel()
	onSem(t, func(b *bench) {
		for flags, limits := range map[string]string{"h": three, "c": "0:3:60000", "hc": "3:3:60000"} {
			b.rdb.FlushDB(ctx)
			one, two, far := permitToken("a", 1, flags, 1), permitToken("a", 2, flags, 2), permitToken("a", 3, flags, 1)
			b.semaphoreAcquire(lua.Granted, limits, one, 0)
			b.semaphoreAcquire(lua.Granted, limits, two, 0)
			got := b.semaphoreHeartbeat(limits, 0, far, two)
			if len(got) != 15 || got[8] != int64(lua.Unknown) || got[12] != int64(lua.Held) || got[13] != b.fence(two) || got[14].(int64) <= got[1].(int64) {
				b.Errorf("%s: reply %v", flags, got)
			}
			got = b.semaphoreHeartbeat(limits, 1, far, 0, one, 0)
			if len(got) != 15 || got[8] != int64(lua.Waiting) || got[12] != int64(lua.Held) {
				b.Errorf("%s: reply %v", flags, got)
			}
			b.waits(far)
			b.semaphoreRelease(lua.Left, far, 1)
		}
	})
}

// TestLostLimitsRestoredByCaller: the limits of the next caller are in force, be it by a heartbeat.
func TestLostLimitsRestoredByCaller(t *testing.T) {
	t.Parallel()
	onSem(t, func(b *bench) {
		held, x, y := permitToken("a", 1, "h", 2), permitToken("b", 1, "h", 2), permitToken("b", 2, "h", 1)
		b.semaphoreAcquire(lua.Granted, three, held, 0)
		b.listen("b")
		b.semaphoreAcquire(lua.Waiting, three, x, heartbeatTTL)
		b.semaphoreAcquire(lua.Waiting, three, y, heartbeatTTL)
		b.rdb.Del(ctx, b.keys[1])
		got := b.semaphoreHeartbeat(three, 0, y)
		if len(got) != 7 {
			b.Errorf("reply %v", got)
		}
		b.waits(x, y)
		b.rdb.Del(ctx, b.keys[1])
		b.rdb.ZRem(ctx, b.keys[0], held, "#"+held, "used")
		b.semaphoreHeartbeat(three, 0, y)
		b.leases(x, y)
		b.waits()
		b.rdb.Del(ctx, b.keys[1])
		b.semaphoreRelease(lua.Granted, x, 0) // a release knows of no limits, and needs none
		b.limit(three, 0, 1, 3, 0, 0, 0)
	})
}

// TestExpiredPermitsSweptInBatches: a hundred thousand of each, of which no script removes more than a few hundred.
func TestExpiredPermitsSweptInBatches(t *testing.T) {
	onSem(t, func(b *bench) {
		n := 100000
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
			if size-left > 3*3*100+2 {
				b.Fatalf("one script took out %d entries", size-left)
			}
			size = left
			if scripts > n/100 {
				b.Fatalf("%d entries are left after %d scripts", left, scripts)
			}
		}
		b.limit(limits, 0, 0, int64(n), 0, int64(n), 0)
		if size != 0 {
			b.Errorf("%d entries are left", size)
		}

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
		if scripts != 4 { // a hundred of each before it looks for room, and two hundred when it does
			b.Errorf("%d tries for 1000 permits that are over, want 4", scripts)
		}
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
		if got := b.semaphoreAcquire(lua.Refused, perSecond, permitToken("b", 1, "c", 1), 0); got[1] != int64(1001) {
			b.Errorf("in %v ms, want 1001", got[1])
		}
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
		if left := b.end(x) - b.rdb.Time(ctx).Val().UnixMilli(); left != ttl {
			b.Errorf("the lease lasts %d ms, its ttl is %d", left, ttl)
		}
	})
}

func TestReceiptKnownUntilPermitsReturn(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		x := permitToken("a", 1, "c", 1)
		first := b.semaphoreAcquire(lua.Granted, perSecond, x, 0)
		pass(1000 * time.Millisecond)
		if again := b.semaphoreAcquire(lua.Granted, perSecond, x, 0); again[0] != first[0] {
			b.Errorf("repeated, fence %v became %v", first[0], again[0])
		}
		pass(time.Millisecond)
		if again := b.semaphoreAcquire(lua.Granted, perSecond, x, 0); again[0] == first[0] {
			b.Error("a grant was known for longer than its permit was away")
		}
		b.wantTaken(x)
		b.code(b.renew(x, 2, ttl, 1), lua.Refused)
	})
}

func TestInspectPermits(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		inspect := func(what int) []any {
			b.Helper()
			return b.eval(b.set.Inspect, protocol.InspectArgs(nil, what, 0, 10, ""))
		}
		x, y, z := permitToken("a", 1, "hc", 1), permitToken("a", 2, "hc", 1), permitToken("b", 1, "hc", 2)
		b.semaphoreAcquire(lua.Granted, twoAndFour, x, 0)
		pass(10 * time.Millisecond)
		b.semaphoreAcquire(lua.Granted, twoAndFour, y, 0)
		b.listen("b")
		b.semaphoreAcquire(lua.Waiting, twoAndFour, z, heartbeatTTL)
		b.semaphoreRelease(lua.Granted, x, 0)
		if got := inspect(protocol.InspectHolders); len(got) != 6 || got[1] != int64(1) || got[2] != y || got[3] != b.fence(y) || got[4] != int64(ttl) {
			b.Errorf("holders %v", got)
		}
		if got := inspect(protocol.InspectWaiters); len(got) != 5 || got[1] != z || got[4] != int64(heartbeatTTL) {
			b.Errorf("waiters %v", got)
		}
	})
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		x, y := permitToken("a", 1, "c", 1), permitToken("a", 2, "c", 2)
		b.semaphoreAcquire(lua.Granted, perSecond, x, 0)
		pass(10 * time.Millisecond)
		b.semaphoreAcquire(lua.Granted, perSecond, y, 0)
		inspect := func() []any {
			return b.eval(b.set.Inspect, protocol.InspectArgs(nil, protocol.InspectHolders, 0, 10, ""))
		}
		got := inspect()
		if len(got) != 10 || got[1] != int64(2) || got[2] != x || got[3] != b.fence(x) || got[4] != int64(991) || got[6] != y || got[8] != int64(1001) {
			b.Errorf("grants %v", got)
		}
		pass(991 * time.Millisecond)
		if got := inspect(); len(got) != 6 || got[2] != y {
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
			reply := b.eval(b.set.Inspect, protocol.InspectArgs(nil, protocol.InspectTaken, place, 5, last))
			for i := 2; i < len(reply); i += 4 {
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

// TestFastLeavesFreePermitsToWaiters: also if nothing is held, as when none of those that wait could be notified.
func TestFastLeavesFreePermitsToWaiters(t *testing.T) {
	t.Parallel()
	onSem(t, func(b *bench) {
		held, waits := permitToken("a", 1, "h", 3), permitToken("b", 1, "h", 1)
		b.semaphoreAcquire(lua.Granted, three, held, 0)
		b.semaphoreAcquire(lua.Waiting, three, waits, heartbeatTTL)
		b.rdb.Del(ctx, b.keys[0])
		fast := b.fastAcquire(permitToken("c", 1, "h", 1), three)
		if b.leases(); fast != 0 {
			b.Errorf("the fast script replies %v", fast)
		}
		b.waits(waits)
	})
}

// TestRequestQueuesBehindFullSemaphore: whatever decides it, a request that finds all permits held queues with the retry time of
// the lease that ends first, unless one has expired, the limits are others, or there are never so many permits.
func TestRequestQueuesBehindFullSemaphore(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		sub := b.listen("b")
		b.semaphoreAcquire(lua.Granted, three, permitToken("a", 1, "h", 2), 0)
		pass(time.Second)
		b.semaphoreAcquire(lua.Granted, three, permitToken("a", 2, "h", 1), 0)
		for i, retry := range []int64{ttl - 1000, ttl - 1000, ttl - 1000, 0} {
			got := b.semaphoreAcquire(lua.Waiting, three, permitToken("b", i, "h", 1), 10*ttl)
			if got[3] != int64(i) || got[4] != retry {
				b.Errorf("waiter %d: %v, want to retry in %d ms", i, got, retry)
			}
		}
		b.semaphoreAcquire(lua.AboveLimit, three, permitToken("b", 9, "h", 4), heartbeatTTL)
		again := b.semaphoreAcquire(lua.Waiting, three, permitToken("b", 1, "h", 1), 10*ttl)
		if again[3] != int64(1) {
			b.Errorf("repeated: %v", again)
		}
		pass((ttl - 1000) * time.Millisecond)
		b.semaphoreAcquire(lua.Waiting, three, permitToken("c", 1, "h", 1), 10*ttl)
		b.notified(sub, permitToken("b", 0, "h", 1), permitToken("b", 1, "h", 1))
		if m := b.message(sub); !slices.Equal(m, []string{"2", "-1000"}) {
			b.Errorf("message %v, want the next lease's end", m)
		}
		b.semaphoreAcquire(lua.Waiting, "4:0:0", permitToken("c", 2, "h", 1), 10*ttl)
		b.notified(sub, permitToken("b", 2, "h", 1))
	})
}

// TestLateGrantCountsFromHeartbeat: a waiter whose message was lost starts only when its heartbeat is answered, so the window
// counts from then.
func TestLateGrantCountsFromHeartbeat(t *testing.T) {
	t.Parallel()
	for flags, limits := range map[string]string{"c": "0:1:1000", "hc": "3:1:1000"} {
		t.Run(flags, func(t *testing.T) {
			atTimeOf(t, lua.Semaphore, func(b *bench, pass func(time.Duration)) {
				first, late, next := permitToken("a", 1, flags, 1), permitToken("b", 1, flags, 1), permitToken("c", 1, flags, 1)
				b.semaphoreAcquire(lua.Granted, limits, first, 0)
				sub := b.listen("b")
				b.semaphoreAcquire(lua.Waiting, limits, late, heartbeatTTL)
				pass(1001 * time.Millisecond)
				b.semaphoreHeartbeat(limits, 0)
				b.notified(sub, late)
				pass(600 * time.Millisecond)
				if got := b.semaphoreHeartbeat(limits, 0, late); got[8] != int64(lua.Held) {
					b.Fatalf("reply %v", got)
				}
				pass(600 * time.Millisecond)
				if left := b.semaphoreAcquire(lua.Refused, limits, next, 0)[1]; left != int64(401) {
					b.Errorf("the permit is to return in %v ms, want 401", left)
				}
				pass(401 * time.Millisecond)
				b.semaphoreAcquire(lua.Granted, limits, next, 0)
			})
		})
	}
}
