package lua_test

import (
	"fmt"
	"maps"
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

// takesFast reports whether the next acquisition of the free lock takes the fast script: it draws the next number, and leaves the
// rest of the metadata as it is.
func (b *bench) takesFast(serial int) bool {
	b.Helper()
	token := b.token("a", serial)
	before := b.rdb.HGetAll(ctx, b.keys[1]).Val()
	if b.fastAcquire(token, b.policyArg) != 0 {
		b.code(b.release(token, 0), lua.Granted)
		return true
	}
	after := b.rdb.HGetAll(ctx, b.keys[1]).Val()
	check.That(b, maps.Equal(after, before), "the fast script has changed the metadata from %v to %v", before, after)
	n, err := b.rdb.Exists(ctx, b.keys[0]).Result()
	check.That(b, n == 0 && err == nil, "the fast script has left the lock's key, %d, %v", n, err)
	b.code(b.acquire(token, 0), lua.Granted)
	b.code(b.release(token, 0), lua.Granted)
	return false
}

func TestFastUnlessRare(t *testing.T) {
	atTimes(t, withoutLimits, func(b *bench, pass func(time.Duration)) {
		seq := func() string { return b.rdb.HGet(ctx, b.keys[1], "seq").Val() }
		serial := 0
		takes := func(fast bool, state string) {
			b.Helper()
			if serial++; b.takesFast(serial) != fast {
				b.Errorf("by the fast script: %v, when %s", !fast, state)
			}
		}
		takes(false, "there was no metadata yet")
		takes(true, "there is some")

		b.release(b.token("b", 1), 10_000) // a request that was given up
		before := seq()
		check.That(b, strings.HasPrefix(before, "-"), "with a tombstone the last fence is stored as %s", before)
		b.code(b.acquire(b.token("b", 1), 0), lua.Tombstoned)
		if n, err := b.rdb.Exists(ctx, b.keys[0]).Result(); n != 0 || err != nil || seq() != before {
			b.Errorf("a tombstoned request left the lock's key %d and the last fence %s, %v", n, seq(), err)
		}
		takes(false, "there is a tombstone")
		pass(11 * time.Second)
		takes(false, "the tombstone is still noted")
		takes(true, "the tombstone has expired")

		pass(metadataTTL * time.Millisecond / 2)
		takes(false, "half of the metadata's time has passed")
		left := b.rdb.PTTL(ctx, b.keys[1]).Val()
		check.That(b, left >= (metadataTTL-1000)*time.Millisecond, "the metadata is kept for %v", left)
		takes(true, "the metadata was just extended")

		b.rdb.Del(ctx, b.keys[1])
		takes(false, "the metadata was lost")
		b.expires(1)
	})
}

// A try that is refused leaves everything as it is.
func TestFastRefusalChangesNothing(t *testing.T) {
	onServers(t, withoutLimits, func(b *bench) {
		b.enqueue(b.token("a", 1))
		before := b.rdb.HGetAll(ctx, b.keys[1]).Val()
		left := -b.fastAcquire(b.token("b", 1), b.policyArg)
		check.That(t, left >= ttl-5000 && left <= ttl, "the lease is said to end in %d ms", left)
		after := b.rdb.HGetAll(ctx, b.keys[1]).Val()
		check.That(t, len(after) == len(before) && after["seq"] == before["seq"], "the metadata was %v and is %v", before, after)
	})
}

// Whatever is in the metadata, a lock can be acquired.
func TestUnknownMetadata(t *testing.T) {
	onServers(t, append(withHandOn, lua.Redlock), func(b *bench) {
		for i, fields := range [][]any{{"seq", 7}, {"seq", "x"}, {"seq", ""}, {"seq", 7, "kept", "x"}, {"kept", 9e15}, {"seq", -7, "kept", 9e15}} {
			b.rdb.Del(ctx, b.keys[1])
			b.rdb.HSet(ctx, b.keys[1], fields...)
			for j := range 2 {
				token := b.token("a", 10*i+j)
				b.code(b.acquire(token, 0), lua.Granted)
				b.code(b.release(token, 0), lua.Granted)
			}
		}
	})
}

// TestFastReleaseOfAnExpiredLease: that nothing else is in the key does not mean that the lease has not ended, if the key was kept for a
// longer one.
func TestFastReleaseOfAnExpiredLease(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		set                  *lua.Set
		longer, lease, other string
		limits               string
	}{
		{lua.RWLock, rwToken("a", 1, "r"), rwToken("a", 2, "r"), rwToken("a", 3, "r"), ""},
		{lua.Semaphore, token("a", 1) + "h1", token("a", 2) + "h1", token("a", 3) + "h1", "5:0:0"},
	} {
		t.Run(c.set.Kind, func(t *testing.T) {
			atTimeOf(t, c.set, func(b *bench, pass func(time.Duration)) {
				take := func(token string, ms int) {
					b.code(b.eval(c.set.Acquire, acquireArgs(token, ms, 0, c.limits, 0)), lua.Granted)
				}
				fast := func(token string, want int64) {
					b.Helper()
					n, err := b.run(c.set.Fast.Release, token).Int64()
					check.That(b, err == nil && n == want, "the fast script replied %d, want %d (%v)", n, want, err)
				}
				take(c.longer, 60_000)
				take(c.lease, 1000)
				fast(c.longer, lua.Granted+32)
				pass(999 * time.Millisecond)
				take(c.other, 60_000)
				fast(c.other, lua.Granted+32)
				pass(time.Millisecond)
				fast(c.lease, lua.Refused+32)
				take(c.other, 1000)
				pass(999 * time.Millisecond)
				fast(c.other, lua.Granted+32)
				fast(c.other, lua.Refused+32)
				take(c.other, 1000)
				b.rdb.Persist(ctx, b.keys[0]) // so that it says nothing of when the lease ends
				pass(time.Second)
				fast(c.other, lua.Refused+32)
			})
		})
	}
}

// TestLeastFences: a fence is at least the server's time, which mutex and fair may round down to ms.
func TestLeastFences(t *testing.T) {
	t.Parallel()
	onServers(t, withHandOn, func(b *bench) {
		granted := 0
		for i := range 20 {
			now := must.Get(b.rdb.Time(ctx).Result())(b)
			least := now.UnixMicro()
			if b.set.OneHolder {
				least = now.UnixMilli() * 1000
			}
			own := b.token("a", i)
			fence := b.fastAcquire(own, b.policyArg)
			if fence == 0 { // the first of an epoch
				fence = b.acquire(own, 0)[1].(int64)
			} else {
				granted++
			}
			must.That(b, fence >= least, "fence %d at %d", fence, now.UnixMicro())
			b.code(b.release(own, 0), lua.Granted)
		}
		check.That(b, granted != 0, "the fast script granted nothing")
	})
}

// TestHandOnAheadOfTheClock: where the last fence is ahead of the server's clock, the next one follows it, and the message says which.
func TestHandOnAheadOfTheClock(t *testing.T) {
	t.Parallel()
	onServers(t, withHandOn, func(b *bench) {
		own, waiter, sub := b.token("a", 1), b.token("b", 1), b.listen("b")
		b.enqueue(own, waiter)
		last := b.rdb.Time(ctx).Val().UnixMicro() + 987_654
		must.OK(b, b.rdb.HSet(ctx, b.keys[lua.MetaKey], "seq", last).Err())
		b.handOn(own, lua.Granted)
		m, seq := b.message(sub), b.rdb.HGet(ctx, b.keys[lua.MetaKey], "seq").Val()
		check.That(b, len(m) == 2 && m[1] == strconv.FormatInt(last+1, 10) && seq == m[1], "message %v, and the last fence is %s after %d", m, seq, last)
	})
}

// handOn releases by the fast script that hands on, and expects a code.
func (b *bench) handOn(token string, want int64) {
	b.Helper()
	code, err := b.run(b.set.Fast.HandOn, token, channelPrefix, protocol.EpochOf(metadataTTL), way).Int64()
	must.That(b, err == nil && code == want, "the fast script replied %d, want %d (%v)", code, want, err)
}

// TestHandOnWithoutSubscription: a waiter whose keeper has said that it is not subscribed is left to the general script, although the
// keeper may be subscribed again. Its heartbeat can have lapsed, and the lease that it is granted ends with that.
func TestHandOnWithoutSubscription(t *testing.T) {
	t.Parallel()
	onServers(t, withHandOn, func(b *bench) {
		own, waiter := b.token("a", 1), b.token("b", 1)
		b.enqueue(own, waiter)
		b.listen("b")
		b.heartbeat(protocol.HeartbeatUnsubscribed, waiter)
		b.handOn(own, lua.Undecided)
		must.OK(b, b.rdb.ZIncrBy(ctx, b.keys[lua.QueueKey], -60_000, "+"+waiter).Err()) // it has lapsed
		b.handOn(own, lua.Undecided)
		b.heartbeat(0, waiter)
		b.handOn(own, lua.Granted)
	})
}

// TestHandOnPassesOverDeadWaiters: waiters of processes that have ended leave the queue with the hand-off, and the first that is
// subscribed is granted the lock. Of more than three of them the fast script decides nothing.
func TestHandOnPassesOverDeadWaiters(t *testing.T) {
	t.Parallel()
	onServers(t, []*lua.Set{lua.Mutex, lua.Fair}, func(b *bench) {
		for _, c := range []struct {
			dead int
			want int64
		}{{1, lua.Granted}, {3, lua.Granted}, {4, lua.Undecided}} {
			b.rdb.FlushAll(ctx)
			own, alive, next := b.token("a", 1), b.token("b", 1), b.token("c", 1)
			var dead []string
			for i := range c.dead {
				dead = append(dead, b.token("d", i))
			}
			waiters := append(dead, alive, next)
			b.enqueue(own, waiters...)
			sub := b.listen("b")
			code, err := b.run(b.set.Fast.HandOn, own, channelPrefix, protocol.EpochOf(metadataTTL), way).Int64()
			must.That(b, err == nil && code == c.want, "%d dead: the fast script replied %d (%v)", c.dead, code, err)
			if code == lua.Undecided {
				b.members(2, waiters...)
				b.code(b.release(own, 0), lua.Granted)
			}
			b.members(2, next)
			m := b.message(sub)
			check.That(b, len(m) == 2 && m[0] == "1", "%d dead: message %v", c.dead, m)
			must.OK(b, sub.Close())
		}
	})
}

// TestWaiterSaysHowItIsReached: the channel of a message is that which the keeper's id says, whatever the releaser's own is; the grant to a keeper
// whose id says nothing stands, and nobody else is granted the lock.
func TestWaiterSaysHowItIsReached(t *testing.T) {
	t.Parallel()
	onServers(t, withHandOn, func(b *bench) {
		for keeper, prefix := range map[string]string{"b.0": "", "b.5": "lock:", "b.6": "lock:x", "b.1024": "lock:x", "b": "-", "b.x": "-", "b.-1": "-"} {
			b.rdb.FlushAll(ctx)
			own, waiter := b.token("a", 1), fmt.Sprintf("%s:1:%d.%d%s", keeper, ttl, heartbeatTTL, b.flags)
			b.enqueue(own, waiter, b.token("c", 1))
			var sub *redis.PubSub
			if prefix != "-" {
				sub = b.rdb.Subscribe(ctx, prefix+"wake:"+keeper)
				must.Get(sub.Receive(ctx))(b)
			}
			args := []any{own, channelPrefix, protocol.EpochOf(metadataTTL), way}
			code, err := b.run(b.set.Fast.HandOn, args...).Int64()
			must.That(b, err == nil && (code == lua.Granted) == (keeper == "b"+way), "%s: the fast script replied %d (%v)", keeper, code, err)
			if code == lua.Undecided {
				b.code(b.release(own, 0), lua.Granted)
			}
			b.members(2, b.token("c", 1))
			if sub != nil {
				m := b.message(sub)
				check.That(b, len(m) == 2 && m[0] == "1", "%s: message %v", keeper, m)
				must.OK(b, sub.Close())
			}
		}
	})
}

// TestGrantToUncountedWaiterStands: whoever says that it does not count on its subscription is granted the lock in its turn whether it is
// subscribed or not, and the message is sent all the same.
func TestGrantToUncountedWaiterStands(t *testing.T) {
	t.Parallel()
	onServers(t, withHandOn, func(b *bench) {
		for _, subscribed := range []bool{false, true} {
			b.rdb.FlushAll(ctx)
			own, waiter := b.token("a", 1), b.token("b", 1)
			b.code(b.acquire(own, 0), lua.Granted)
			args := []any{waiter, ttl, b.policyArg, int64(metadataTTL), queueTTL, 0, 1}
			b.code(b.eval(b.set.Acquire, args), lua.Waiting)
			b.listen("c")
			b.code(b.acquire(b.token("c", 1), heartbeatTTL), lua.Waiting)
			var sub *redis.PubSub
			if subscribed {
				sub = b.listen("b")
			}
			b.code(b.release(own, 0), lua.Granted)
			b.members(2, b.token("c", 1))
			got := b.heartbeat(0, waiter)
			check.That(b, len(got) == 11 && got[8] == int64(lua.Held), "subscribed %t: its heartbeat replied %v, want that it holds the lock", subscribed, got)
			if subscribed {
				m := b.message(sub)
				check.That(b, len(m) == 2 && m[0] == "1", "message %v", m)
			}
		}
	})
}
