package lua_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// allow acquires permits without waiting, and checks what the reply says about the limit.
func (b *bench) allow(want int, limits, token string, limit, remaining, resetAfter int64) {
	b.Helper()
	b.checkAllow(b.evalAllow(token, limits), want, limit, remaining, resetAfter)
}

// allowAgain is allow for a copy of a request, which a keeper sends by the general script.
func (b *bench) allowAgain(want int, limits, token string, limit, remaining, resetAfter int64) {
	b.Helper()
	b.checkAllow(b.generalAllow(token, limits), want, limit, remaining, resetAfter)
}

func (b *bench) checkAllow(got protocol.AcquireReply, want int, limit, remaining, resetAfter int64) {
	b.Helper()
	must.That(b, got.Code == int64(want), "reply %+v, want code %d", got, want)
	if want := (protocol.Quota{Limit: int(limit), Remaining: int(remaining), ResetAfter: resetAfter}); got.Quota != want {
		b.Fatalf("reply %+v, want the quota %+v", got, want)
	}
	b.checkCounts()
}

func allowArgs(token, limits string) []any {
	return []any{token, ttl, limits, int64(metadataTTL)}
}

func (b *bench) evalAllow(token, limits string) protocol.AcquireReply {
	b.Helper()
	got, _ := b.fastOrAllow(token, limits)
	return got
}

// fastOrAllow runs the fast script, and then allow if that decides nothing, and decodes the reply as the keeper does. It says as well
// whether the fast script has decided.
func (b *bench) fastOrAllow(token, limits string) (got protocol.AcquireReply, fast bool) {
	b.Helper()
	var atOnce, window int
	var per int64
	must.Get(fmt.Sscanf(limits, "%d:%d:%d", &atOnce, &window, &per))(b)
	v, err := b.run(protocol.FastOf(b.set, limits).Acquire, fastArgs(b.set, token, limits)...).Result()
	if list, is := v.([]any); is {
		return must.Get(protocol.ParseFastAllowReply([]int64{list[0].(int64), list[1].(int64)}, window, per))(b), true
	}
	if v != int64(0) {
		b.Fatal(v, err)
	}
	return b.generalAllow(token, limits), false
}

func (b *bench) generalAllow(token, limits string) protocol.AcquireReply {
	b.Helper()
	list := must.Get(b.run(b.set.Allow, allowArgs(token, limits)...).Int64Slice())(b)
	return must.Get(protocol.ParseAllowReply(list))(b)
}

// TestLimitsOfOthersCountTakings: a window that callers without leases have filled is full for those who hold permits as well.
func TestLimitsOfOthersCountTakings(t *testing.T) {
	t.Parallel()
	atTimeOf(t, lua.RateLimit, func(b *bench, pass func(time.Duration)) {
		for i := range 3 {
			b.evalAllow(permitToken("a", i, "c", 1), perSecond)
			pass(time.Millisecond)
		}
		const both = "5:3:1000"
		fast := func(serial int) int64 {
			n := b.fastAcquire(permitToken("b", serial, "hc", 1), both)
			b.checkCounts()
			return n
		}
		b.code(b.eval(b.set.Acquire, acquireArgs(permitToken("b", 1, "hc", 1), ttl, 0, both, 0)), lua.Refused)
		pass(time.Millisecond)
		if n := fast(2); n != 0 {
			b.Errorf("the fast script replies %d", n)
		}
		pass(time.Minute)
		if n := fast(3); n <= 1e12 {
			b.Errorf("the fast script replies %d when all have returned", n)
		}
	})
}

// TestAllowNeverPromisesTooMuch: where too much has returned and is not swept, the reply says less than remains.
func TestAllowNeverPromisesTooMuch(t *testing.T) {
	for _, n := range []int{1, 2} {
		atTimeOf(t, lua.RateLimit, func(b *bench, pass func(time.Duration)) {
			const limit = 2000
			limits := fmt.Sprintf("0:%d:1000", limit)
			for i := range 700 {
				b.eval(b.set.Acquire, acquireArgs(permitToken("a", i, "c", n), ttl, 0, limits, 0))
			}
			pass(1001 * time.Millisecond)
			remaining := b.evalAllow(permitToken("b", 1, "c", 1), limits).Quota.Remaining
			if remaining > limit-1 || n == 1 && remaining != limit-1 || remaining < limit-1-600 {
				b.Errorf("%d remain of %d, each request took %d", remaining, limit, n)
			}
		})
	}
}

// TestClockSetBackDoesNotProlongWindow: what remains has TestAllowRemainsIsExact.
func TestClockSetBackDoesNotProlongWindow(t *testing.T) {
	t.Parallel()
	atTimeOf(t, lua.RateLimit, func(b *bench, pass func(time.Duration)) {
		b.allow(lua.Granted, perSecond, permitToken("a", 1, "c", 1), 3, 2, 1001)
		pass(-time.Hour)
		b.allow(lua.Granted, perSecond, permitToken("a", 2, "c", 1), 3, 1, 1001)
		b.allow(lua.Refused, perSecond, permitToken("a", 3, "c", 2), 3, 1, 1001)
	})
}

// TestWindowRefusalWritesNothing: a refusal for permits that return by the clock leaves everything as it is, so a replica gives it as
// well. It may know too little of what has returned, never too little of what was taken before.
func TestWindowRefusalWritesNothing(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		taken []int // permits of each request
		asks  int
	}{
		"the window is full":        {[]int{1, 1, 1}, 1},
		"one request took it all":   {[]int{3}, 1},
		"too few permits are left":  {[]int{1, 1}, 2},
		"more than the oldest took": {[]int{1, 1, 1}, 2},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, redistest.Connect(redistest.Start(t)), lua.RateLimit)
			const limits = "0:3:60000"
			for i, n := range c.taken {
				b.evalAllow(permitToken("a", i, "c", n), limits)
			}
			check := func(where string) {
				t.Helper()
				allow := b.evalAllow(permitToken("b", 1, "c", c.asks), limits)
				if allow.Code != lua.Refused || allow.RetryAfter < 50_000 || allow.RetryAfter > 60_001 || allow.Quota.ResetAfter < allow.RetryAfter {
					t.Errorf("%s, allow: %+v", where, allow)
				}
				if got := b.eval(b.set.Acquire, acquireArgs(permitToken("b", 2, "c", c.asks), ttl, 0, limits, 0)); got[0] != int64(lua.Refused) || got[2].(int64) < 50_000 {
					t.Errorf("%s, acquire: %v", where, got)
				}
			}
			changes := b.changes()
			check("primary")
			if n := b.changes() - changes; n != 0 {
				t.Errorf("%d changes for the replicas", n)
			}
			must.OK(t, b.rdb.Do(ctx, "replicaof", "127.0.0.1", "1").Err())
			check("replica")
			if _, err := b.run(b.set.Allow, allowArgs(permitToken("a", 0, "c", c.taken[0]), limits)...).Result(); !redis.HasErrorPrefix(err, "READONLY") {
				t.Errorf("a copy of what was granted: %v", err)
			}
		})
	}
}

// TestFastWindow: after a request for one permit the fast script decides, also when the window has been full, and has returned; not while
// a request is known that took several at once.
func TestFastWindow(t *testing.T) {
	t.Parallel()
	atTimeOf(t, lua.RateLimit, func(b *bench, pass func(time.Duration)) {
		serial := 0
		asks := func(n int, fast bool) {
			t.Helper()
			serial++
			got, by := b.fastOrAllow(permitToken("a", serial, "c", n), perSecond)
			check.That(t, by == fast, "request %d: %+v by the fast script: %v", serial, got, by)
			pass(10 * time.Millisecond)
			b.checkCounts()
		}
		window := func(want string) {
			t.Helper()
			got := b.rdb.HGet(ctx, b.keys[1], "window").Val()
			if at, _ := strconv.ParseFloat(got, 64); at > 1e12 {
				got = "oldest"
			}
			check.That(t, got == want, "after request %d: %q, want %q", serial, got, want)
		}
		asks(1, false) // there was no metadata yet
		window("0")
		asks(1, true)
		window("0")
		asks(1, true)
		window("oldest")
		asks(1, true)
		pass(time.Second)
		asks(2, false)
		window("")
		asks(2, false)
		asks(1, false)
		window("")
		asks(1, false)
		pass(2 * time.Second)
		asks(1, false)
		window("0")
		asks(1, true)
		b.rdb.Del(ctx, b.keys[0]) // as by eviction
		asks(1, true)
		b.expires(0)
		asks(1, true)
		asks(1, true)
		window("oldest")
		pass(980 * time.Millisecond)
		asks(3, false) // one has returned and is swept, which is not enough
		window("")
		pass(-time.Hour)
		asks(1, false) // the last fence is ahead of the clock
		window("")
	})
}

// TestKeyOutlastsWindow: whichever script took them, permits are known until they return.
func TestKeyOutlastsWindow(t *testing.T) {
	t.Parallel()
	for _, per := range []int64{10, 1000, 70_000, 600_000} {
		atTimeOf(t, lua.RateLimit, func(b *bench, pass func(time.Duration)) {
			limits := fmt.Sprintf("0:1000:%d", per)
			r := rand.New(rand.NewPCG(uint64(per), 0))
			for i := range 200 {
				d := time.Duration(r.Int64N(per/2)+1) * time.Millisecond
				pass(d)
				b.evalAllow(permitToken("a", i, "c", 1+r.IntN(2)*r.IntN(2)), limits)
				if left := b.rdb.PTTL(ctx, b.keys[0]).Val(); left <= time.Duration(per)*time.Millisecond || left > 2*time.Duration(per)*time.Millisecond+time.Second {
					t.Fatalf("request %d: the key is kept for %v, a window is %d ms", i, left, per)
				}
			}
		})
	}
}

// TestAllowRemainsIsExact compares it with a list of what was granted when, swept or not, with copies of requests and counts of
// what is taken in between.
func TestAllowRemainsIsExact(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	const limit, per = 60, 1000
	limits := fmt.Sprintf("0:%d:%d", limit, per)
	for run := range 8 {
		weights := 1 + run/2
		atTimeOf(t, lua.RateLimit, func(b *bench, pass func(time.Duration)) {
			type taking struct {
				at int64
				i  int
				n  int
			}
			var list []taking
			now := int64(0)
			remains := func() (remaining, resetAfter int64) {
				remaining = limit
				for _, x := range list {
					if left := x.at + per + 1 - now; left > 0 {
						remaining -= int64(x.n)
						resetAfter = left
					}
				}
				return remaining, resetAfter
			}
			for i := range 200 {
				d := r.Int64N(30)
				if r.IntN(40) == 0 {
					d = r.Int64N(2000)
				}
				now += d
				pass(time.Duration(d) * time.Millisecond)
				remaining, resetAfter := remains()
				switch r.IntN(10) {
				case 0: // a copy of one of the last requests that were granted
					if copied := len(list) - 1 - r.IntN(3); copied >= 0 && list[copied].at+per+1 > now {
						x := list[copied]
						b.allowAgain(lua.Granted, limits, permitToken("a", x.i, "c", x.n), limit, remaining, resetAfter)
					}
				case 1:
					got := b.eval(b.set.Limit, limitArgs(limits, 0, ""))
					must.That(b, got[3] == limit-remaining, "%d are taken, want %d", got[3], limit-remaining)
				}
				n, want := 1+r.IntN(weights), lua.Refused
				if int64(n) <= remaining {
					want = lua.Granted
					remaining, resetAfter = remaining-int64(n), per+1
					list = append(list, taking{now, i, n})
				}
				b.allow(want, limits, permitToken("a", i, "c", n), limit, remaining, resetAfter)
			}
			pass(time.Hour)
			if left := b.rdb.Exists(ctx, b.keys[0]).Val(); left != 0 {
				b.Error("the lock's key does not expire")
			}
		})
	}
}
