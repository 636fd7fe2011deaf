package lua_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/lua"
)

// allow acquires permits without waiting, and checks what the reply says about the limit.
func (b *bench) allow(want int, limits, token string, limit, remaining, resetAfter int64) {
	b.Helper()
	got := b.eval(b.set.Allow, 4, acquireArgs(token, ttl, 0, limits, 0))
	b.code(got, want)
	said := got[len(got)-3:]
	if length := map[int]int{lua.Granted: 8, lua.Refused: 7}[want]; len(got) != length || fmt.Sprint(said) != fmt.Sprint([]any{limit, remaining, resetAfter}) {
		b.Fatalf("reply %v, want the limit %d, %d remaining, reset after %d ms", got, limit, remaining, resetAfter)
	}
	b.checkCounts()
}

func TestAllowReportsWhatRemains(t *testing.T) {
	t.Parallel()
	atTimeOf(t, lua.RateLimit, func(b *bench, pass func(time.Duration)) {
		b.allow(lua.Granted, perSecond, permitToken("a", 1, "c", 2), 3, 1, 1001)
		pass(400 * time.Millisecond)
		b.allow(lua.Refused, perSecond, permitToken("a", 2, "c", 2), 3, 1, 601)
		b.allow(lua.Granted, perSecond, permitToken("a", 3, "c", 1), 3, 0, 1001)
		b.allow(lua.Granted, perSecond, permitToken("a", 3, "c", 1), 3, 0, 1001) // a copy of the request
		b.allow(lua.Refused, perSecond, permitToken("a", 4, "c", 1), 3, 0, 1001)
		pass(601 * time.Millisecond)
		b.allow(lua.Granted, perSecond, permitToken("a", 5, "c", 1), 3, 1, 1001) // two have returned, and are not swept yet
		pass(10 * time.Second)
		b.allow(lua.Granted, perSecond, permitToken("a", 6, "c", 1), 3, 2, 1001)

		// The limit in force counts, not the caller's.
		b.code(b.eval(b.set.Limit, 4, limitArgs(perSecond, 2, token("a", 7))), lua.Granted)
		b.allow(lua.Refused, perSecond, permitToken("a", 8, "c", 2), 2, 1, 1001)
		got := b.eval(b.set.Allow, 4, acquireArgs(permitToken("a", 9, "c", 3), ttl, 0, perSecond, 0))
		b.code(got, lua.AboveLimit)

		// Waiters come first, and have taken nothing.
		b.listen("b")
		b.semaphoreAcquire(lua.Waiting, perSecond, permitToken("b", 1, "c", 2), heartbeatTTL)
		b.allow(lua.Refused, perSecond, permitToken("a", 10, "c", 1), 2, 1, 1001)
	})
}

// TestAllowRemainsIsExact compares it with a list of what was granted when, swept or not.
func TestAllowRemainsIsExact(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	const limit, per = 60, 1000
	limits := fmt.Sprintf("0:%d:%d", limit, per)
	for range 6 {
		weights := 1 + r.IntN(4)
		atTimeOf(t, lua.RateLimit, func(b *bench, pass func(time.Duration)) {
			type taking struct {
				at int64
				n  int
			}
			var list []taking
			now := int64(0)
			for i := range 200 {
				d := r.Int64N(30)
				if r.IntN(40) == 0 {
					d = r.Int64N(2000)
				}
				now += d
				pass(time.Duration(d) * time.Millisecond)
				remaining, resetAfter := int64(limit), int64(0)
				for _, x := range list {
					if left := x.at + per + 1 - now; left > 0 {
						remaining -= int64(x.n)
						resetAfter = left
					}
				}
				n, want := 1+r.IntN(weights), lua.Refused
				if int64(n) <= remaining {
					want = lua.Granted
					remaining, resetAfter = remaining-int64(n), per+1
					list = append(list, taking{now, n})
				}
				b.allow(want, limits, permitToken("a", i, "c", n), limit, remaining, resetAfter)
			}
		})
	}
}

// TestAllowNeverPromisesTooMuch: where too much has returned and is not swept, the reply says less than remains.
func TestAllowNeverPromisesTooMuch(t *testing.T) {
	for _, n := range []int{1, 2} {
		atTimeOf(t, lua.RateLimit, func(b *bench, pass func(time.Duration)) {
			const limit = 2000
			limits := fmt.Sprintf("0:%d:1000", limit)
			for i := range 700 {
				b.eval(b.set.Acquire, 4, acquireArgs(permitToken("a", i, "c", n), ttl, 0, limits, 0))
			}
			pass(1001 * time.Millisecond)
			got := b.eval(b.set.Allow, 4, acquireArgs(permitToken("b", 1, "c", 1), ttl, 0, limits, 0))
			remaining := got[6].(int64)
			if remaining > limit-1 || n == 1 && remaining != limit-1 || remaining < limit-1-600 {
				b.Errorf("%d remain of %d, each request took %d", remaining, limit, n)
			}
		})
	}
}

func TestAllowAfterClockSetBack(t *testing.T) {
	t.Parallel()
	atTimeOf(t, lua.RateLimit, func(b *bench, pass func(time.Duration)) {
		b.allow(lua.Granted, perSecond, permitToken("a", 1, "c", 1), 3, 2, 1001)
		pass(-time.Hour)
		b.allow(lua.Granted, perSecond, permitToken("a", 2, "c", 1), 3, 1, 1001)
		b.allow(lua.Refused, perSecond, permitToken("a", 3, "c", 2), 3, 1, 1001)
	})
}
