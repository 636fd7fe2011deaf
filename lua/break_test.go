package lua_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

var notice = protocol.BreakNotice(protocol.Breaker{By: "ops", Reason: "stuck"})

// breakToken breaks a token and expects this code, whether its keeper was told, and that there is no more to admit.
func (b *bench) breakToken(token string, code, told int) {
	b.Helper()
	got := b.eval(b.set.Break, protocol.BreakArgs(nil, token, settings, 60_000, b.policyArg, notice))
	if want := fmt.Sprint([]any{code, told, 0}); fmt.Sprint(got) != want {
		b.Fatalf("break returned %v, want %s", got, want)
	}
}

func TestBreakEndsLeaseAndAdmits(t *testing.T) {
	t.Parallel()
	allAtTime(t, func(b *bench, pass func(time.Duration)) {
		holder, first, second := b.token("a", 1), b.token("b", 1), b.token("b", 2)
		b.enqueue(holder, first, second)
		ofHolder, ofWaiters := b.listen("a"), b.listen("b")
		b.breakToken(holder, lua.Granted, 1)
		if got := strings.Join(b.message(ofHolder), " "); got != "1 "+notice {
			b.Errorf("the holder was told %q", got)
		}
		if got := b.message(ofWaiters); len(got) < 2 || got[0] != strings.Split(first, ":")[1] || strings.HasPrefix(got[1], "-") {
			b.Errorf("the first waiter was told %q", got)
		}
		b.code(b.renew(holder, 1, ttl, 0), lua.Refused)
		b.breakToken(holder, lua.Refused, 0) // a copy that comes late
		b.notNotified("a", ofHolder)

		// A copy of the request is refused for a minute.
		again := acquireArgs(holder, ttl, heartbeatTTL, b.policyArg, 0)
		b.code(b.eval(b.set.Acquire, again), lua.Tombstoned)
		b.code(b.renew(first, 1, ttl, 0), lua.Granted)
		pass(59 * time.Second)
		b.code(b.eval(b.set.Acquire, again), lua.Tombstoned)
	})
}

// TestNoticeStaysBesideTombstone checks that inspect finds the notice of a break, also after a release of the token has written its
// tombstone anew, and not those of others.
func TestNoticeStaysBesideTombstone(t *testing.T) {
	t.Parallel()
	allAtTime(t, func(b *bench, pass func(time.Duration)) {
		holder, waiter, other := b.token("a", 1), b.token("b", 1), b.token("c", 1)
		notices := func(of, want string) {
			b.Helper()
			if got := fmt.Sprint(b.inspect(protocol.InspectBreak, 0, 500, of)); got != want {
				b.Errorf("inspect of %s returned %s, want %s", of, got, want)
			}
		}
		b.enqueue(holder, waiter, other)
		notices(holder, "[0]")
		b.breakToken(waiter, lua.Left, 0)
		b.breakToken(holder, lua.Granted, 0)
		notices(holder, "[1 "+notice+"]")
		pass(time.Second)
		b.code(b.release(holder, 60_000), lua.Refused)
		b.release(other, 60_000)
		notices(holder, "[1 "+notice+"]")
		notices(waiter, "[1 "+notice+"]")
		notices(other, "[0]")
		pass(59*time.Second + 500*time.Millisecond)
		notices(holder, "[1 "+notice+"]")
		b.code(b.acquire(holder, heartbeatTTL), lua.Tombstoned)
	})
}

func TestBreakRemovesWaiter(t *testing.T) {
	t.Parallel()
	allAtTime(t, func(b *bench, _ func(time.Duration)) {
		holder, first, second := b.token("a", 1), b.token("b", 1), b.token("c", 1)
		b.enqueue(holder, first, second)
		sub := b.listen("b")
		b.breakToken(first, lua.Left, 1)
		if got := strings.Join(b.message(sub), " "); got != "1 "+notice {
			b.Errorf("the waiter was told %q", got)
		}
		b.breakToken(second, lua.Left, 0) // nobody listens
		// Neither returns to the queue.
		beat := b.heartbeat(1, first, 0)
		if len(beat) != 11 || fmt.Sprint(beat[8]) != fmt.Sprint(lua.Tombstoned) {
			b.Errorf("the waiter's heartbeat is answered %v", beat)
		}
		b.code(b.renew(holder, 1, ttl, 0), lua.Granted)
		b.breakToken(b.token("d", 1), lua.Refused, 0)
	})
}
