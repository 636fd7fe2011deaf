package lua_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// recalled expects one message, which recalls the lease of a token.
func (b *bench) recalled(sub *redis.PubSub, token string) {
	b.Helper()
	if got, want := b.message(sub), []string{strings.Split(token, ":")[1], "recall"}; !slices.Equal(got, want) {
		b.Fatalf("message %v, want %v", got, want)
	}
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
		must.OK(b, b.rdb.Set(ctx, b.keys[0], "another library's", time.Minute).Err())
		second := token("b", 2)
		b.code(b.acquire(second, heartbeatTTL), lua.Waiting)
		must.OK(b, b.rdb.Del(ctx, b.keys[0]).Err())
		b.code(ask(token("a", 2)+"k", protocol.PolicyArgRetain, 0), lua.Refused)
		b.holder(second)
	})
}
