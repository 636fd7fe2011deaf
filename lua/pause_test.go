package lua_test

import (
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

// pause sets the pause, and expects so many ms of it.
func (b *bench) pause(limits string, ms, want int64) {
	b.Helper()
	got := b.eval(b.set.Limit, protocol.LimitArgs(nil, settings, limits, 0, "", ms))
	b.code(got, lua.Granted)
	if got[6].(int64) != want {
		b.Fatalf("reply %v, want a pause of %d ms", got, want)
	}
	b.checkCounts()
}

// fast runs the fast script, and expects its reply: 0, -ms, or 1 for a fence.
func (b *bench) fast(want int64, limits, token string) {
	b.Helper()
	if n := b.fastAcquire(token, limits); min(n, 1) != want {
		b.Fatalf("the fast script replied %d, want %d", n, want)
	}
}

// TestPauseRefusesAllScripts: none grants permits before the end of a pause, and the first call after it is granted.
func TestPauseRefusesAllScripts(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		one := func(n int) string { return permitToken("a", n, "c", 1) }
		b.semaphoreAcquire(lua.Granted, perSecond, one(1), 0)
		pass(time.Millisecond)
		b.fast(1, perSecond, one(2))
		b.pause(perSecond, 5000, 5000)
		b.pause(perSecond, 2000, 5000) // a longer one stays
		b.pause(perSecond, 0, 5000)    // to look at it changes nothing

		refused := func(n int, ms int64) {
			b.Helper()
			b.fast(0, perSecond, one(n))
			if got := b.semaphoreAcquire(lua.Refused, perSecond, one(n), 0); got[1] != ms {
				b.Fatalf("refused for %v ms, want %d", got[1], ms)
			}
			if ms > 1 {
				if got := b.semaphoreAcquireWithin(lua.Refused, perSecond, one(n), heartbeatTTL, ms-1); got[1] != ms {
					b.Fatalf("refused for %v ms, want %d", got[1], ms)
				}
			}
			got := b.evalAllow(one(n), perSecond)
			if want := (protocol.Quota{Limit: 3, Remaining: 0, ResetAfter: ms}); got.Code != lua.Refused || got.RetryAfter != ms || got.Quota != want {
				b.Fatalf("allow: %+v, want %d ms, %+v", got, ms, want)
			}
		}
		b.set = lua.RateLimit
		refused(3, 5000)
		pass(4999 * time.Millisecond)
		refused(4, 1)
		b.wantTaken() // those from before have returned meanwhile
		pass(time.Millisecond)
		b.semaphoreAcquire(lua.Granted, perSecond, one(5), 0)
		b.inForce(perSecond + " " + perSecond)
		pass(time.Millisecond)
		b.fast(1, perSecond, one(6))
		pass(time.Millisecond)
		b.allow(lua.Granted, perSecond, one(7), 3, 0, 1001)
	})
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

func TestWaitersServedAfterPause(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		sub := b.listen("b")
		b.semaphoreAcquire(lua.Granted, perSecond, permitToken("a", 1, "c", 3), 0)
		before := permitToken("b", 1, "c", 2)
		if got := b.semaphoreAcquire(lua.Waiting, perSecond, before, heartbeatTTL); got[4] != int64(1001) {
			b.Fatalf("reply %v, want a retry in 1001 ms", got)
		}
		b.pause(perSecond, 3000, 3000)
		after := permitToken("b", 2, "c", 3)
		if got := b.semaphoreAcquire(lua.Waiting, perSecond, after, heartbeatTTL); got[4] != int64(3000) {
			b.Fatalf("reply %v, want a retry in 3000 ms", got)
		}
		if got := b.semaphoreAcquire(lua.Refused, perSecond, permitToken("b", 3, "c", 1), 0); got[1] != int64(5002) {
			b.Fatalf("reply %v, want 5002 ms: after the pause, and two windows for the waiters", got)
		}
		pass(1001 * time.Millisecond)
		got := b.semaphoreHeartbeat(perSecond, 0, before, after)
		if got[3] != int64(1999) || len(got) != 7 {
			b.Fatalf("reply %v, want a retry in 1999 ms", got)
		}
		b.waits(before, after)
		pass(1999 * time.Millisecond)
		got = b.semaphoreHeartbeat(perSecond, 0, before, after)
		if len(got) != 11 || got[7] != int64(1) || got[8] != int64(lua.Granted) || got[3] != int64(1001) {
			b.Fatalf("reply %v", got)
		}
		b.waits(after)
		b.inForce(perSecond + " " + perSecond)
		b.notNotified("b", sub)
	})
}

// TestResumeAdmitsWaiters: it also says to the next one, which was told the end of the pause, when it can have its permits.
func TestResumeAdmitsWaiters(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		sb, sc := b.listen("b"), b.listen("c")
		b.pause(perSecond, 5_000, 5_000)
		first, second := permitToken("b", 1, "c", 3), permitToken("c", 1, "c", 1)
		for i, token := range []string{first, second} {
			if got := b.semaphoreAcquire(lua.Waiting, perSecond, token, heartbeatTTL); got[3] != int64(i) || got[4] != int64(5000) {
				b.Fatalf("reply %v, want a retry in 5000 ms", got)
			}
		}
		b.semaphoreRelease(lua.Refused, permitToken("x", 1, "c", 1), 0) // a release admits nobody
		b.waits(first, second)
		b.pause(perSecond, -1, 0)
		b.notified(sb, first)
		b.waits(second)
		if m, err := sc.ReceiveMessage(ctx); err != nil || m.Payload != "1 -1001" {
			b.Fatalf("%v, %v", m, err)
		}
		b.pause(perSecond, -1, 0) // there is none
		b.inForce(perSecond + " " + perSecond)
		_ = pass
	})
}

// TestPauseOutlivesOtherChanges: other limits and the metadata's ttl do not end it.
func TestPauseOutlivesOtherChanges(t *testing.T) {
	t.Parallel()
	semAtTime(t, func(b *bench, pass func(time.Duration)) {
		const day, other = 24 * 3600 * 1000, "0:5:1000"
		b.pause(perSecond, day, day)
		if left := b.rdb.PTTL(ctx, b.keys[1]).Val(); left < (day+metadataTTL/2)*time.Millisecond {
			b.Fatalf("the metadata is kept for %v", left)
		}
		b.code(b.eval(b.set.Limit, limitArgs(perSecond, 2, token("a", 1))), lua.Granted)
		b.pause(perSecond, 0, day)
		b.semaphoreAcquire(lua.Refused, other, permitToken("a", 2, "c", 1), 0)
		b.pause(other, 0, day)
		pass((day - 1) * time.Millisecond)
		b.semaphoreAcquire(lua.Refused, other, permitToken("a", 3, "c", 1), 0)
		pass(time.Millisecond)
		b.semaphoreAcquire(lua.Granted, other, permitToken("a", 4, "c", 1), 0)
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

// TestPauseBesideLeases: with permits that are held, those that have some keep them, and nobody gets others.
func TestPauseBesideLeases(t *testing.T) {
	t.Parallel()
	onSem(t, func(b *bench) {
		held, waits := permitToken("a", 1, "hc", 2), permitToken("b", 1, "hc", 1)
		b.semaphoreAcquire(lua.Granted, twoAndFour, held, 0)
		sub := b.listen("b")
		b.eval(b.set.Limit, protocol.LimitArgs(nil, settings, twoAndFour, 0, "", 600_000))
		b.fast(0, twoAndFour, permitToken("c", 1, "hc", 1))
		b.semaphoreAcquire(lua.Waiting, twoAndFour, waits, heartbeatTTL)
		b.code(b.eval(b.set.Renew, renewArgs(held, ttl, 0)), lua.Granted)
		if again := b.semaphoreAcquire(lua.Granted, twoAndFour, held, 0); again[0] != b.fence(held) {
			b.Errorf("repeated: %v", again)
		}
		b.semaphoreRelease(lua.Granted, held, 0)
		b.waits(waits)
		b.pause(twoAndFour, -1, 0)
		b.notified(sub, waits)
		b.leases(waits)
	})
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
