package lua_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

func (b *bench) raiseFence(token string, least, up int64) []any {
	b.Helper()
	return b.eval(b.set.RaiseFence, protocol.RaiseFenceArgs(nil, token, least, settings, up))
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

func TestTokenSetsMinimumFence(t *testing.T) {
	t.Parallel()
	onBothServers(t, lua.Redlock, func(b *bench) {
		ahead := time.Now().Add(time.Hour).UnixMicro()
		wants := func(serial int, least string) string { return token("a", serial) + "f" + least }
		first := wants(1, decimal(ahead))
		got := b.acquire(first, 0)
		b.code(got, lua.Granted)
		if got[1] != ahead {
			b.Errorf("fence %v, asked for %d at least", got[1], ahead)
		}
		if again := b.acquire(first, 0); again[1] != got[1] {
			b.Errorf("fence %v became %v", got[1], again[1])
		}
		b.code(b.acquire(wants(2, decimal(ahead+1000)), 0), lua.Refused)
		b.release(first, 0)

		// A refused request changes nothing, and a least fence that is too small has no effect.
		second := wants(3, "5")
		got = b.acquire(second, 0)
		if got[1] != ahead+1 {
			b.Errorf("fence %v after %d", got[1], ahead)
		}
		b.release(second, 0)
		if got = b.acquire(token("a", 4), 0); got[1] != ahead+2 {
			b.Errorf("fence %v after %d", got[1], ahead+1)
		}
	})
}

// TestMetadataOutlivesFenceAhead checks that the metadata is kept for longer than it takes the server's clock to reach the last
// fence, if all tokens name a least fence ahead of that clock, as with a server whose clock is behind the others'. Else a fence
// after that could be smaller.
func TestMetadataOutlivesFenceAhead(t *testing.T) {
	atTimeOf(t, lua.Redlock, func(b *bench, pass func(time.Duration)) {
		const ahead, kept = 3 * metadataTTL * time.Millisecond, metadataTTL * time.Millisecond
		for serial := range 60 {
			us := b.rdb.Time(ctx).Val().Add(ahead).UnixMicro()
			token := token("a", serial) + "f" + decimal(us)
			b.code(b.acquire(token, 0), lua.Granted)
			b.code(b.release(token, 0), lua.Granted)
			if last := b.rdb.HGet(ctx, b.keys[1], "seq").Val(); last != decimal(us) {
				t.Fatalf("the last fence is %s, asked for %d at least", last, us)
			}
			if left := b.rdb.PTTL(ctx, b.keys[1]).Val(); left < ahead+kept/2 {
				t.Fatalf("the metadata is kept for %v, the last fence is %v ahead", left, ahead)
			}
			pass(kept / 10)
		}
	})
}

func TestRaiseFence(t *testing.T) {
	t.Parallel()
	onBothServers(t, lua.Redlock, func(b *bench) {
		holder := token("a", 1)
		fence := b.acquire(holder, 0)[1].(int64)
		if got := b.raiseFence(holder, fence-1, 0); got[0] != int64(lua.Granted) || got[1] != fence {
			b.Errorf("%v, the fence was %d", got, fence)
		}
		higher := fence + time.Hour.Microseconds()
		if got := b.raiseFence(holder, higher, 0); got[0] != int64(lua.Granted) || got[1] != higher {
			b.Errorf("%v, raised to %d", got, higher)
		}
		// A token that does not hold the lock changes nothing.
		b.code(b.raiseFence(token("b", 1), higher+1000, 0), lua.Refused)
		b.release(holder, 0)
		b.code(b.raiseFence(holder, higher+1000, 0), lua.Refused)
		if next := b.acquire(token("b", 2), 0)[1]; next != higher+1 {
			b.Errorf("the next fence is %v after %d", next, higher)
		}
		b.expires(0, 1)
	})
}

// The embedded server does not report an uptime.
func TestRaiseFenceNeedsMinUptime(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := &bench{t, s.Client(), []string{"lock:x", "{lock:x}:mutex:meta", "{lock:x}:mutex:queue", "{lock:x}:mutex:tombstones"}, lua.Redlock}
	holder := token("a", 1)
	fence := b.acquire(holder, 0)[1].(int64)
	got := b.raiseFence(holder, fence+time.Hour.Microseconds(), time.Hour.Milliseconds())
	if ran, ok := got[1].(int64); got[0] != int64(lua.Unknown) || !ok || ran < 0 || ran > 60000 {
		t.Errorf("%v from a server that was just started", got)
	}
	s.Await("yes", func(context.Context, *redis.Client) (string, error) {
		if b.raiseFence(holder, 0, 1000)[0] == int64(lua.Granted) {
			return "yes", nil
		}
		return "", nil
	})
	if last := b.raiseFence(holder, 0, 0)[1]; last != fence {
		t.Errorf("a refusal has moved the fence from %d to %v", fence, last)
	}
}
