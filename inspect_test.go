package lockkeeper

import (
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/views"
)

// TestInspectTokens checks what holders and waiters say of tokens of each kind.
func TestInspectTokens(t *testing.T) {
	for _, x := range []struct {
		token, keeper, note string
		permits             int
		writes              bool
		retained            bool
	}{
		{token: "another library", keeper: ""},
		{token: "k:1:30000.6000", keeper: "k"},
		{token: "k:1:30000.6000s", keeper: "k"},
		{token: "k:1:30000.6000r", keeper: "k"},
		{token: "k:1:30000.6000w10", keeper: "k", writes: true}, // the number is the longest streak
		{token: "k:1:30000.6000ws10", keeper: "k", writes: true},
		{token: "k:1:30000.6000u", keeper: "k", writes: true},
		{token: "k:1:30000.6000d", keeper: "k"},
		{token: "k:1:30000.6000h3", keeper: "k", permits: 3},
		{token: "k:1:30000.6000c4", keeper: "k", permits: 4},
		{token: "k:1:30000.6000hcs5", keeper: "k", permits: 5},
		{token: "k:1~am9iIDQy:30000.6000w", keeper: "k", writes: true, note: "job 42"},
		{token: "k:1~G1sySg:30000.6000w", keeper: "k", writes: true}, // a note that cannot be printed
		{token: "k:1:5000.5000k", keeper: "k", retained: true},
		{token: "k:1:5000.5000rk", keeper: "k", retained: true},
		{token: "k:1:5000.5000hk2", keeper: "k", permits: 2, retained: true},
		{token: "k:1:6000.6000cb40", keeper: "k", permits: 40, retained: true}, // taken ahead
		{token: "k:1:30000.6000f1790000000000000", keeper: "k"},                // the number is the least fence
	} {
		holders := newHolders([]views.Holder{{Token: x.token, Owner: "o", Fence: 7, ExpiresIn: time.Second, Unconfirmed: true}})
		if want := (Holder{x.token, x.keeper, "o", time.UnixMicro(7), 7, time.Second, x.permits, x.writes, true, x.note, x.retained}); !slices.Equal(holders, []Holder{want}) {
			t.Errorf("holders %+v, want %+v", holders, want)
		}
		waiters := newWaiters([]views.Waiter{{Token: x.token, Owner: "o", WaitTime: time.Minute, HeartbeatLeft: 1, HeartbeatAge: 5}})
		if want := (Waiter{x.token, x.keeper, "o", time.Minute, true, 5, x.permits, x.writes, x.note}); !slices.Equal(waiters, []Waiter{want}) {
			t.Errorf("waiters %+v, want %+v", waiters, want)
		}
	}
	if list := newWaiters([]views.Waiter{{HeartbeatLeft: 0}}); list[0].Alive {
		t.Error("a waiter whose heartbeat has expired is alive")
	}
}
