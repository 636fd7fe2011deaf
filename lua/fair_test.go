package lua_test

import (
	"fmt"
	"testing"

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
