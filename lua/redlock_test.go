package lua_test

import (
	"context"
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

// The embedded server does not report an uptime.
func TestRaiseFenceNeedsMinUptime(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := newBench(t, s.Client(), lua.Redlock)
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
