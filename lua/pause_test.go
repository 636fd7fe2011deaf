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
