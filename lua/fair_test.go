package lua_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

func TestNotifyHeadIsBounded(t *testing.T) {
	t.Parallel()
	onBothServers(t, lua.Fair, func(b *bench) {
		const short, long = 5 * heartbeatTTL, 10 * heartbeatTTL // none lapses while they come, however long that takes
		brief := func(keeper string, serial int) string {
			return fmt.Sprintf("%s:%d:%d.%d", keeper, serial, short, short)
		}
		b.listen("live")
		enter := func(token string) {
			b.eval(b.set.Acquire, acquireArgs(token, short, long, "", 0))
		}
		enter(brief("live", 1))
		enter(brief("live", 2))
		for i := range 250 {
			enter(brief("dead", i))
		}
		b.code(b.release(brief("live", 1), 0), lua.Granted)
		b.holder(brief("live", 2))
		if n := b.rdb.ZCard(ctx, b.keys[2]).Val(); n != 2*150 {
			b.Errorf("%d of 250 waiters without a subscription are left after one script, want 150", n/2)
		}
	})
}

func TestInspectWritesNothing(t *testing.T) {
	t.Parallel()
	onBoth(t, func(b *bench) {
		if got := b.inspect(protocol.InspectHolders, 0, 10, ""); len(got) != 2 || got[0] != int64(0) || got[1] != int64(0) {
			b.Errorf("of nothing: %v", got)
		}
		if got := b.inspect(protocol.InspectWaiters, 0, 10, ""); len(got) != 1 {
			b.Errorf("of nobody: %v", got)
		}
		if keys := b.rdb.Keys(ctx, "*").Val(); len(keys) != 0 {
			b.Errorf("looking has left %v", keys)
		}
		fence := b.acquire(token("a", 1), 0)[1]
		var places []any
		for i := range 3 {
			places = append(places, b.acquire(token("b", i), heartbeatTTL)[3])
		}
		got := b.inspect(protocol.InspectHolders, 0, 10, "")
		if len(got) != 6 || got[0] != int64(1) || got[1] != int64(1) || got[2] != token("a", 1) || got[3] != fence || got[4].(int64) <= 0 {
			b.Errorf("the holder: %v", got)
		}
		got = b.inspect(protocol.InspectWaiters, 0, 2, "")
		if len(got) != 9 || got[1] != token("b", 0) || got[2] != places[0] || got[5] != token("b", 1) || got[8].(int64) <= 0 {
			b.Errorf("the first two: %v", got)
		}
		got = b.inspect(protocol.InspectWaiters, places[1].(int64), 2, "")
		if len(got) != 5 || got[1] != token("b", 2) {
			b.Errorf("the last: %v", got)
		}
		b.rdb.Set(ctx, b.keys[0], "foreign", time.Minute)
		if got := b.inspect(protocol.InspectHolders, 0, 10, ""); got[2] != "foreign" || got[3] != int64(0) {
			b.Errorf("a foreign holder: %v", got)
		}
	})
}
