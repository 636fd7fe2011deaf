package lua_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// further is how much larger the fence of a retained lease is stored; see RETAINED in lib/constants.lua.
const further = 4500000000000000 - 900000000000000

// retain requests a read lease that the process retains, and expects that it is granted. It returns the fence.
func (b *bench) retain(token string) int64 {
	b.Helper()
	got := b.eval(b.set.Acquire, acquireArgs(token, ttl, heartbeatTTL, protocol.PolicyArgRetain, 0))
	b.code(got, lua.Granted)
	return got[1].(int64)
}

// renewRetained renews a lease that the process retains.
func (b *bench) renewRetained(token string, keys int, ms int64, exact int) []any {
	b.Helper()
	if keys == 1 {
		got := b.eval(b.set.Fast.Renew, protocol.FastRenewArgs(nil, token, ms))
		if got[0] == int64(lua.Recalled) {
			return []any{int64(lua.Granted), int64(0), int64(1)}
		}
		return []any{got[0], int64(0), int64(0)}
	}
	return b.eval(b.set.Renew, protocol.RenewArgs(nil, token, ms, exact, settings, 1))
}

// isRetained expects that a lease with this fence is marked as retained, or that it is not.
func (b *bench) isRetained(token string, fence int64, want bool) {
	b.Helper()
	stored := fence
	if want {
		stored += further
	}
	if got := b.fence(token); got != stored {
		b.Fatalf("the fence of %s is stored as %d, want %d", token, got, stored)
	}
}

// recalled expects one message, which recalls the lease of a token.
func (b *bench) recalled(sub *redis.PubSub, token string) {
	b.Helper()
	if got, want := b.message(sub), []string{strings.Split(token, ":")[1], "recall"}; !slices.Equal(got, want) {
		b.Fatalf("message %v, want %v", got, want)
	}
}

func TestWriterRecallsRetainedLeases(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		ka, kb, plain := rwToken("a", 1, "rk"), rwToken("b", 1, "rk"), rwToken("c", 1, "r")
		w, w2, late := rwToken("c", 2, "w16"), rwToken("c", 3, "w16"), rwToken("d", 1, "r")
		subA, subB, subC := b.listen("a"), b.listen("b"), b.listen("c")
		b.listen("d")
		fa := b.retain(ka)
		fb := b.retain(kb)
		b.wantAcquire(lua.Granted, plain, 0) // an ordinary reader is let in beside them
		if again := b.retain(ka); again != fa || fb <= fa {
			b.Errorf("fences %d, again %d, and %d", fa, again, fb)
		}
		b.isRetained(ka, fa, true)
		b.isRetained(kb, fb, true)
		holders := b.eval(b.set.Inspect, protocol.InspectArgs(nil, protocol.InspectHolders, 0, 10, ""))
		if !slices.Contains(holders, any(fa)) || !slices.Contains(holders, any(fb)) {
			b.Errorf("holders %v, want the fences %d and %d", holders, fa, fb)
		}

		// The first writer that waits recalls each once, and not the ordinary reader.
		b.notNotified("a", subA)
		end := b.end(ka)
		b.wantAcquire(lua.Waiting, w, heartbeatTTL)
		b.recalled(subA, ka)
		b.recalled(subB, kb)
		b.isRetained(ka, fa, false)
		b.isRetained(kb, fb, false)
		if at := b.end(ka); at != end {
			b.Errorf("the end of a recalled lease became %d, was %d", at, end)
		}
		b.wantAcquire(lua.Waiting, w2, heartbeatTTL)
		b.wantAcquire(lua.Waiting, w, heartbeatTTL)
		b.heartbeat(0, w)
		b.wantAcquire(lua.Waiting, late, heartbeatTTL) // behind the writers
		b.notNotified("a", subA)
		b.notNotified("b", subB)
		b.held(ka, kb, plain)

		// A repeated request does not mark it again.
		b.retain(ka)
		b.isRetained(ka, fa, false)

		// The ordinary release hands on, once the last has gone.
		b.code(b.release(ka, 0), lua.Granted)
		b.code(b.release(plain, 0), lua.Granted)
		b.notNotified("c", subC)
		b.held(kb)
		b.code(b.release(kb, 0), lua.Granted)
		b.notified(subC, w)
		b.held(w)
		b.waits(w2, late)
	})
}

func TestRenewalRepliesRecall(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		k, plain, w := rwToken("a", 1, "rk"), rwToken("b", 1, "r"), rwToken("c", 1, "w16")
		b.code(b.renewRetained(k, 1, ttl, 0), lua.Refused)
		fence := b.retain(k)
		b.wantAcquire(lua.Granted, plain, 0)
		want := func(got []any, fence, recalled int64) {
			b.Helper()
			if !slices.Equal(got, []any{int64(lua.Granted), fence, recalled}) {
				b.Errorf("reply %v, want fence %d and %d", got, fence, recalled)
			}
		}
		for _, recalled := range []int64{0, 1} {
			want(b.renewRetained(k, 1, ttl, 0), 0, recalled)
			want(b.renewRetained(k, 2, ttl, 0), fence, recalled)
			want(b.renewRetained(k, 4, 2*ttl, 1), fence, recalled) // Extend
			want(b.renewRetained(k, 4, ttl, 1), fence, recalled)
			b.isRetained(k, fence, recalled == 0)
			if got := b.renew(plain, 1, ttl, 0); len(got) != 2 {
				b.Errorf("reply %v to a lease that is not retained", got)
			}
			// Nobody listens, so this recalls by the replies alone, and takes nothing away.
			b.wantAcquire(lua.Refused, w, 0)
			b.held(k, plain)
		}
		b.code(b.release(k, 0), lua.Granted)
		b.code(b.renewRetained(k, 1, ttl, 0), lua.Refused)
		b.held(plain)
	})
}

func TestUnreceivedRecallFreesNothing(t *testing.T) {
	t.Parallel()
	atTime(t, func(b *bench, pass func(time.Duration)) {
		k, w := rwToken("a", 1, "rk"), rwToken("b", 1, "w16")
		sub := b.listen("b")
		b.retain(k)
		if wait := b.wantAcquire(lua.Waiting, w, heartbeatTTL); wait[4] != int64(ttl) {
			b.Errorf("reply %v, want %d ms until the retained lease ends", wait, ttl)
		}
		b.held(k)
		for left := ttl; left > 1; {
			step := min(left-1, heartbeatTTL/2)
			pass(time.Duration(step) * time.Millisecond)
			left -= step
			if got := b.heartbeat(0, w); len(got) > 7 {
				b.Fatalf("reply %v with %d ms left", got, left)
			}
		}
		b.held(k)
		pass(time.Millisecond)
		if got := b.heartbeat(0, w); got[8] != int64(lua.Granted) {
			b.Errorf("reply %v after the retained lease has ended", got)
		}
		b.held(w)
		b.code(b.renewRetained(k, 1, ttl, 0), lua.Refused)
		b.code(b.release(k, 0), lua.Refused)
		b.held(w)
		b.notNotified("b", sub)
	})
}

func TestQueuedReaderIsGrantedRetainedLease(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		k, w, w2 := rwToken("a", 1, "rk"), rwToken("b", 1, "w16"), rwToken("b", 2, "w16")
		sub := b.listen("a")
		b.listen("b")
		b.wantAcquire(lua.Granted, w, 0)
		b.code(b.eval(b.set.Acquire, acquireArgs(k, ttl, heartbeatTTL, protocol.PolicyArgRetain, 0)), lua.Waiting)
		b.code(b.release(w, 0), lua.Granted)
		m := b.message(sub)
		fence := b.fence(k) - further
		if len(m) != 2 || m[0] != "1" || m[1] != strconv.FormatInt(fence, 10) {
			b.Errorf("message %v, want fence %d", m, fence)
		}
		b.isRetained(k, fence, true)
		if got := b.heartbeat(0, k); got[8] != int64(lua.Held) || got[9] != fence {
			b.Errorf("reply %v, want fence %d", got, fence)
		}
		b.wantAcquire(lua.Waiting, w2, heartbeatTTL)
		b.recalled(sub, k)
		b.isRetained(k, fence, false)
		b.code(b.release(k, 0), lua.Granted)
		b.held(w2)
	})
}

func TestTryRecalls(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		k := rwToken("a", 1, "rk")
		sub := b.listen("a")
		fence := b.retain(k)
		b.wantAcquire(lua.Granted, rwToken("b", 1, "r"), 0) // a reader does not
		b.notNotified("a", sub)
		b.wantAcquire(lua.Refused, rwToken("b", 2, "w16"), 0)
		b.recalled(sub, k)
		b.isRetained(k, fence, false)
		b.waits()
	})
}

func TestUpgradeBesideRetainedLeases(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		r, k, u := rwToken("a", 1, "r"), rwToken("b", 1, "rk"), rwToken("a", 2, "u")
		subA, subB := b.listen("a"), b.listen("b")
		b.wantAcquire(lua.Granted, r, 0)
		fence := b.retain(k)
		b.code(b.convert(u, r, heartbeatTTL), lua.Waiting)
		b.recalled(subB, k)
		b.isRetained(k, fence, false)
		b.held(r, k)
		b.code(b.release(k, 0), lua.Granted)
		b.notified(subA, u)
		b.held(u)
		b.code(b.release(u, 0), lua.Granted)

		// A retained lease is upgraded like any other, with all that belongs to it.
		fence = b.retain(k)
		u = rwToken("b", 2, "u")
		got := b.convert(u, k, heartbeatTTL)
		if b.code(got, lua.Granted); got[1].(int64) <= fence {
			b.Errorf("fence %v after %d", got[1], fence)
		}
		b.isRetained(u, got[1].(int64), false)
		b.held(u)
		b.notNotified("b", subB)
	})
}

// TestUndeliveredUpgradeRestoresRetainedLease: the lease comes back as it was, with its mark or without.
func TestUndeliveredUpgradeRestoresRetainedLease(t *testing.T) {
	t.Parallel()
	onRW(t, func(b *bench) {
		k, other, u := rwToken("a", 1, "rk"), rwToken("b", 1, "r"), rwToken("a", 2, "u")
		sub := b.listen("a")
		fence := b.retain(k)
		b.wantAcquire(lua.Granted, other, 0)
		b.code(b.convert(u, k, heartbeatTTL), lua.Waiting)
		b.recalled(sub, k) // its own, which nobody else shares by now
		b.unsubscribe("a", sub)
		b.code(b.release(other, 0), lua.Granted)
		b.held(k)
		b.isRetained(k, fence, false)
		b.code(b.renewRetained(k, 1, ttl, 0), lua.Granted)
	})
}

// TestRetainedMutexAndWaiters checks what a lease that its process retains does beside a queue: a request for one does not pass live
// waiters, and waiters that come back to the queue recall it by their heartbeats, once.
func TestRetainedMutexAndWaiters(t *testing.T) {
	t.Parallel()
	onBothServers(t, lua.Mutex, func(b *bench) {
		retained := token("a", 1) + "k"
		ask := func(tok, policyArg string, heartbeat int) []any {
			return b.eval(b.set.Acquire, acquireArgs(tok, ttl, heartbeat, policyArg, 0))
		}
		subA := b.listen("a")
		b.listen("b")
		waiter := token("b", 1)

		// Granted to a free lock. The waiter is sent back to a queue that lost it, as after a failover.
		b.code(ask(retained, protocol.PolicyArgRetain, 0), lua.Granted)
		b.notNotified("a", subA)
		b.heartbeat(1, waiter, 0)
		b.recalled(subA, retained)
		b.heartbeat(0, waiter)
		b.notNotified("a", subA)

		// It waits for a lock that becomes free without a release: a request for a lease to be retained leaves it to the waiter.
		b.release(retained, 0)
		b.release(waiter, 0)
		b.holder("")
		if err := b.rdb.Set(ctx, b.keys[0], "another library's", time.Minute).Err(); err != nil {
			b.Fatal(err)
		}
		second := token("b", 2)
		b.code(b.acquire(second, heartbeatTTL), lua.Waiting)
		if err := b.rdb.Del(ctx, b.keys[0]).Err(); err != nil {
			b.Fatal(err)
		}
		b.code(ask(token("a", 2)+"k", protocol.PolicyArgRetain, 0), lua.Refused)
		b.holder(second)
	})
}
