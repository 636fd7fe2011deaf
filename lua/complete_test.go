package lua_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

// complete turns a lease into a record, once, only for the token that holds it, and also when memory is full.
func TestCompleteStoresRecord(t *testing.T) {
	t.Parallel()
	onBothServers(t, lua.Once, func(b *bench) {
		complete := func(token string, ms int64, want int) {
			b.Helper()
			b.code(b.eval(lua.Once.Complete, protocol.CompleteArgs(nil, token, ms)), want)
		}
		lies := func(want string, least, most time.Duration) {
			b.Helper()
			got, left := b.rdb.Get(ctx, b.keys[0]).Val(), b.rdb.PTTL(ctx, b.keys[0]).Val()
			if got != want || left > most || left <= least {
				b.Errorf("%q for %v; want %q for %v to %v", got, left, want, least, most)
			}
		}
		a, c := token("a", 1), token("c", 1)
		complete(a, 50_000, lua.Refused) // nothing is held
		lies("", -time.Minute, 0)
		b.acquire(a, 0)
		complete(c, 50_000, lua.Refused)
		lies(a, 25*time.Second, 30*time.Second)
		_ = b.rdb.ConfigSet(ctx, "maxmemory", "1").Err() // the embedded server has no such thing
		complete(a, 50_000, lua.Granted)
		_ = b.rdb.ConfigSet(ctx, "maxmemory", "0").Err()
		lies("done:"+a, 45*time.Second, 50*time.Second)
		complete(a, 3_600_000, lua.Granted) // a repeated one
		lies("done:"+a, 45*time.Second, 50*time.Second)
		b.code(b.renew(a, 1, 60_000, 0), lua.Refused)
		b.code(b.release(a, 0), lua.Refused)
		b.code(b.acquire(c, 0), lua.Refused)
		lies("done:"+a, 45*time.Second, 50*time.Second)
		b.code(b.release("done:"+a, 0), lua.Granted) // how it is deleted
		lies("", -time.Minute, 0)
		b.rdb.LPush(ctx, b.keys[0], "foreign")
		if err := b.run(lua.Once.Complete, a, 1000).Err(); err == nil {
			b.Error("a list was taken for a lease")
		}
	})
}
