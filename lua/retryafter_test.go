package lua_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

// crowd is a rate limit with much taken and many waiting. Times are ms.
type crowd struct {
	now, window, per, pause int64
	takings                 []crowdTaking
	waiting                 []int64 // the permits that each of them wants, in order
	heaviest                int64
}

type crowdTaking struct{ at, permits int64 }

// minWait returns the ms for which a newcomer cannot have so many permits, because those that it and the waiters before it need must return
// first. It simulates the future: each takes what it needs as soon as that has returned.
func (c *crowd) minWait(permits int64) int64 {
	at, out := c.now+c.pause, c.takings
	for _, need := range append(c.waiting, permits) {
		for {
			spent, next := int64(0), int64(math.MaxInt64)
			for _, x := range out {
				if back := x.at + c.per + 1; back > at {
					spent, next = spent+x.permits, min(next, back)
				}
			}
			if spent+need <= c.window {
				break
			}
			at = next
		}
		out = append(out, crowdTaking{at, need})
	}
	return at - c.now
}

// TestRetryAfterIsLowerBound checks that a refused try gets a time before which its permits are not available,
// whatever the queue and the window hold. The time is exact if fewer than fifty requests wait and fewer than fifty
// permits have to return, or if each asks for one permit.
func TestRetryAfterIsLowerBound(t *testing.T) {
	atTimeOf(t, lua.Semaphore, func(b *bench, _ func(time.Duration)) {
		reached := map[string]bool{}
		rapid.Check(t, func(r *rapid.T) {
			c := drawCrowd(r, b)
			permits := rapid.Int64Range(1, c.heaviest).Draw(r, "permits")
			want := c.minWait(permits)
			limits := fmt.Sprintf("0:%d:%d", c.window, c.per)
			got := b.eval(b.set.Acquire, acquireArgs(crowdToken(1000, permits), ttl, 0, limits, 0))
			granted, retryAfter := got[0] == int64(lua.Granted), got[2].(int64)
			line, takings := len(c.waiting), len(c.takings)
			exact := line < 50 && takings < 50 || c.heaviest == 1
			if granted && want > 0 || !granted && (retryAfter > want || exact && retryAfter != want) {
				r.Fatalf("%d of %d in %d ms, after a pause of %d ms, %d waiting, %d to return: %v, want it refused for %d ms",
					permits, c.window, c.per, c.pause, line, takings, got, want)
			}
			for what, is := range map[string]bool{
				"granted": granted, "exact": !granted && retryAfter == want, "earlier than possible": !granted && retryAfter < want,
				"a long queue": line > 50, "a crowded window": takings > 50, "a queue for more than a window": want > c.per+1,
				"many waiters for one permit each": line > 50 && c.heaviest == 1,
				"many waiters in a pause":          line > 50 && c.pause > 0,
			} {
				if is {
					reached[what] = true
				}
			}
		})
		check.That(b, len(reached) == 8, "only reached %v", reached)
	})
}

// crowdToken is of a keeper that is taken to be there without a subscription.
func crowdToken(serial int, permits int64) string {
	return fmt.Sprintf("mute:%d:6000.6000c%d", serial, permits)
}

// drawCrowd writes a rate limit as the scripts would leave it.
func drawCrowd(r *rapid.T, b *bench) *crowd {
	b.rdb.FlushAll(ctx)
	c := &crowd{now: b.rdb.Time(ctx).Val().UnixMilli(), window: rapid.SampledFrom([]int64{1, 20, 150}).Draw(r, "limit"), per: rapid.Int64Range(10, 5000).Draw(r, "per"), heaviest: 1}
	if rapid.Bool().Draw(r, "heavy") {
		c.heaviest = min(c.window, 6)
	}
	serial := 0
	request := func() (token string, permits int64) {
		serial++
		permits = rapid.Int64Range(1, c.heaviest).Draw(r, "permits")
		return crowdToken(serial, permits), permits
	}
	pipe, spent := b.rdb.Pipeline(), int64(0)
	add := func(key, member string, score int64) {
		pipe.ZAdd(ctx, key, redis.Z{Member: member, Score: float64(score)})
	}
	for range rapid.SampledFrom([]int{0, 40, 130}).Draw(r, "to return") {
		if spent+c.heaviest > c.window {
			break
		}
		token, permits := request()
		at := c.now - rapid.Int64Range(0, c.per).Draw(r, "ago")
		spent += permits
		c.takings = append(c.takings, crowdTaking{at, permits})
		add(b.keys[0], "@"+token, -at*1000)
	}
	if spent > 0 {
		add(b.keys[0], "spent", -spent)
	}
	for range rapid.SampledFrom([]int{0, 40, 130}).Draw(r, "waiting") {
		token, permits := request()
		c.waiting = append(c.waiting, permits)
		add(b.keys[2], token, c.now*1000+int64(serial))
		add(b.keys[2], "+"+token, heartbeats+c.now+5000)
	}
	limits := fmt.Sprintf("0:%d:%d", c.window, c.per)
	inForce := limits + " " + limits
	if rapid.Bool().Draw(r, "paused") {
		c.pause = rapid.Int64Range(1, 3*c.per).Draw(r, "pause")
		inForce += fmt.Sprintf(" %d %d", c.now+c.pause, c.pause)
	}
	pipe.HSet(ctx, b.keys[1], "limits", inForce, "ticket", c.now*1000+1000)
	for _, key := range b.keys {
		pipe.PExpire(ctx, key, time.Hour)
	}
	must.Get(pipe.Exec(ctx))(b)
	return c
}
