package lockkeeper_test

import (
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/views"
)

// TestInspectTokens checks what holders and waiters say of tokens of each kind.
func TestInspectTokens(t *testing.T) {
	for _, x := range []struct {
		token, keeper, note string
		permits             int
		writes              bool
		ahead               bool
	}{
		{token: "another library", keeper: ""},
		{token: "k:1:30000.6000", keeper: "k"},
		{token: "k:1:30000.6000r", keeper: "k"},
		{token: "k:1:30000.6000w10", keeper: "k", writes: true}, // the number is the longest streak
		{token: "k:1:30000.6000u", keeper: "k", writes: true},
		{token: "k:1:30000.6000d", keeper: "k"},
		{token: "k:1:30000.6000h3", keeper: "k", permits: 3},
		{token: "k:1:30000.6000c4", keeper: "k", permits: 4},
		{token: "k:1:30000.6000hc5", keeper: "k", permits: 5},
		{token: "k:1~am9iIDQy:30000.6000w", keeper: "k", writes: true, note: "job 42"},
		{token: "k:1~G1sySg:30000.6000w", keeper: "k", writes: true}, // a note that cannot be printed
		{token: "k:1:6000.6000cb40", keeper: "k", permits: 40, ahead: true},
		{token: "k:1:30000.6000f1790000000000000", keeper: "k"}, // the number is the least fence
	} {
		h := []views.Holder{{Token: x.token, Owner: "o", Fence: 7, ExpiresIn: time.Second, Unconfirmed: true}}
		holders := must.Get(access.Holders[lockkeeper.Holder](h, nil))(t)
		if want := (lockkeeper.Holder{x.token, x.keeper, "o", time.UnixMicro(7), 7, time.Second, x.permits, x.writes, true, x.note, x.ahead}); !slices.Equal(holders, []lockkeeper.Holder{want}) {
			t.Errorf("holders %+v, want %+v", holders, want)
		}
		w := []views.Waiter{{Token: x.token, Owner: "o", WaitTime: time.Minute, HeartbeatLeft: 1, HeartbeatAge: 5}}
		waiters := must.Get(access.Waiters[lockkeeper.Waiter](w, nil))(t)
		if want := (lockkeeper.Waiter{x.token, x.keeper, "o", time.Minute, true, 5, x.permits, x.writes, x.note}); !slices.Equal(waiters, []lockkeeper.Waiter{want}) {
			t.Errorf("waiters %+v, want %+v", waiters, want)
		}
	}
	list := must.Get(access.Waiters[lockkeeper.Waiter]([]views.Waiter{{HeartbeatLeft: 0}}, nil))(t)
	check.That(t, !list[0].Alive, "a waiter whose heartbeat has expired is alive")
}
