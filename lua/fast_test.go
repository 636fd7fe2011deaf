package lua_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
)

// takesFast reports whether the next acquisition of the free lock takes the fast script: it draws the next number, and leaves the
// rest of the metadata as it is.
func (b *bench) takesFast(token string) bool {
	b.Helper()
	flags, policyArg := flagsOf(b.set)
	before := b.rdb.HGetAll(ctx, b.keys[1]).Val()
	if b.fastAcquire(token+flags, policyArg) != 0 {
		b.code(b.release(token+flags, 0), lua.Granted)
		return true
	}
	if after := b.rdb.HGetAll(ctx, b.keys[1]).Val(); !maps.Equal(after, before) {
		b.Errorf("the fast script has changed the metadata from %v to %v", before, after)
	}
	if n, err := b.rdb.Exists(ctx, b.keys[0]).Result(); n != 0 || err != nil {
		b.Errorf("the fast script has left the lock's key, %d, %v", n, err)
	}
	b.code(b.eval(b.set.Acquire, acquireArgs(token+flags, ttl, 0, policyArg, 0)), lua.Granted)
	b.code(b.release(token+flags, 0), lua.Granted)
	return false
}

func TestFastUnlessRare(t *testing.T) {
	for _, set := range []*lua.Set{lua.Mutex, lua.Fair, lua.RWLock} {
		t.Run(set.Kind, func(t *testing.T) {
			atTimeOf(t, set, func(b *bench, pass func(time.Duration)) {
				flags, _ := flagsOf(b.set)
				seq := func() string { return b.rdb.HGet(ctx, b.keys[1], "seq").Val() }
				if b.takesFast(token("a", 1)) {
					t.Error("there was no metadata yet")
				}
				if !b.takesFast(token("a", 2)) {
					t.Error("the second acquisition took the general script")
				}

				b.release(token("b", 1)+flags, 10_000) // a request that was given up
				if !strings.HasPrefix(seq(), "-") {
					t.Errorf("with a tombstone the last fence is stored as %s", seq())
				}
				before := seq()
				policyFlags, policyArg := flagsOf(b.set)
				got := b.eval(b.set.Acquire, acquireArgs(token("b", 1)+policyFlags, ttl, 0, policyArg, 0))
				b.code(got, lua.Tombstoned)
				if n, err := b.rdb.Exists(ctx, b.keys[0]).Result(); n != 0 || err != nil || seq() != before {
					t.Errorf("a tombstoned request left the lock's key %d and the last fence %s, %v", n, seq(), err)
				}
				if b.takesFast(token("a", 3)) {
					t.Error("there is a tombstone")
				}
				pass(11 * time.Second)
				if b.takesFast(token("a", 4)) {
					t.Error("the tombstone was still noted")
				}
				if !b.takesFast(token("a", 5)) {
					t.Error("the tombstone has expired")
				}

				pass(metadataTTL * time.Millisecond / 2)
				if b.takesFast(token("a", 6)) {
					t.Error("half of the metadata's time has passed")
				}
				if left := b.rdb.PTTL(ctx, b.keys[1]).Val(); left < (metadataTTL-1000)*time.Millisecond {
					t.Errorf("the metadata is kept for %v", left)
				}
				if !b.takesFast(token("a", 7)) {
					t.Error("the metadata was just extended")
				}

				b.rdb.Del(ctx, b.keys[1])
				if b.takesFast(token("a", 8)) {
					t.Error("the metadata was lost")
				}
				b.expires(1)
			})
		})
	}
}

// A try that is refused leaves everything as it is.
func TestFastRefusalChangesNothing(t *testing.T) {
	for _, set := range []*lua.Set{lua.Mutex, lua.Fair, lua.RWLock} {
		t.Run(set.Kind, func(t *testing.T) {
			onBothServers(t, set, func(b *bench) {
				flags, policyArg := flagsOf(b.set)
				b.enqueue(token("a", 1) + flags)
				before := b.rdb.HGetAll(ctx, b.keys[1]).Val()
				if left := -b.fastAcquire(token("b", 1)+flags, policyArg); left < ttl-5000 || left > ttl {
					t.Errorf("the lease is said to end in %d ms", left)
				}
				if after := b.rdb.HGetAll(ctx, b.keys[1]).Val(); len(after) != len(before) || after["seq"] != before["seq"] {
					t.Errorf("the metadata was %v and is %v", before, after)
				}
			})
		})
	}
}

// Whatever is in the metadata, a lock can be acquired.
func TestUnknownMetadata(t *testing.T) {
	for _, set := range []*lua.Set{lua.Mutex, lua.Fair, lua.RWLock, lua.Semaphore, lua.Redlock} {
		t.Run(set.Kind, func(t *testing.T) {
			onBothServers(t, set, func(b *bench) {
				for i, fields := range [][]any{{"seq", 7}, {"seq", "x"}, {"seq", ""}, {"seq", 7, "kept", "x"}, {"kept", 9e15}, {"seq", -7, "kept", 9e15}} {
					b.rdb.Del(ctx, b.keys[1])
					b.rdb.HSet(ctx, b.keys[1], fields...)
					for j := range 2 {
						flags, policyArg := flagsOf(b.set)
						token := token("a", 10*i+j) + flags
						b.code(b.eval(b.set.Acquire, acquireArgs(token, ttl, 0, policyArg, 0)), lua.Granted)
						b.code(b.release(token, 0), lua.Granted)
					}
				}
			})
		})
	}
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
					n, err := b.run(c.set.Fast.Release, protocol.FastReleaseArgs(nil, token)...).Int64()
					if err != nil || n != want {
						b.Errorf("the fast script replied %d, want %d (%v)", n, want, err)
					}
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
			})
		})
	}
}

// TestLeastFences: a fence is at least the server's time, which mutex and fair may round down to ms.
func TestLeastFences(t *testing.T) {
	t.Parallel()
	for _, set := range []*lua.Set{lua.Mutex, lua.Fair, lua.RWLock, lua.Semaphore} {
		t.Run(set.Kind, func(t *testing.T) {
			onBothServers(t, set, func(b *bench) {
				flags, policyArg := flagsOf(set)
				granted := 0
				for i := range 20 {
					now := must.Get(b.rdb.Time(ctx).Result())(b)
					least := now.UnixMicro()
					if set.OneHolder {
						least = now.UnixMilli() * 1000
					}
					own := token("a", i) + flags
					fence := b.fastAcquire(own, policyArg)
					if fence == 0 { // the first of an epoch
						fence = b.eval(set.Acquire, acquireArgs(own, ttl, 0, policyArg, 0))[1].(int64)
					} else {
						granted++
					}
					if fence < least {
						b.Fatalf("fence %d at %d", fence, now.UnixMicro())
					}
					b.code(b.release(own, 0), lua.Granted)
				}
				if granted == 0 {
					b.Error("the fast script granted nothing")
				}
			})
		})
	}
}

// TestHandOnWithoutSubscription: a waiter whose keeper has said that it is not subscribed is left to the general script, although the
// keeper may be subscribed again. Its heartbeat can have lapsed, and the lease that it is granted ends with that.
func TestHandOnWithoutSubscription(t *testing.T) {
	t.Parallel()
	for _, set := range []*lua.Set{lua.Mutex, lua.Fair, lua.RWLock, lua.Semaphore} {
		t.Run(set.Kind, func(t *testing.T) {
			onBothServers(t, set, func(b *bench) {
				flags, policyArg := flagsOf(set)
				own, waiter := token("a", 1)+flags, token("b", 1)+flags
				b.enqueue(own, waiter)
				b.listen("b")
				handOn := func(want int64) {
					b.Helper()
					args := protocol.HandOnArgs(nil, own, channelPrefix, protocol.EpochOf(metadataTTL), nil)
					if code, err := b.run(set.Fast.HandOn, args...).Int64(); err != nil || code != want {
						b.Fatalf("the fast script replied %d, want %d (%v)", code, want, err)
					}
				}
				b.eval(set.Heartbeat, append(heartbeatArgs(protocol.HeartbeatUnsubscribed, policyArg), waiter))
				handOn(lua.Undecided)
				b.eval(set.Heartbeat, append(heartbeatArgs(0, policyArg), waiter))
				handOn(lua.Granted)
			})
		})
	}
}
