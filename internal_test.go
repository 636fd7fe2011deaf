package lockkeeper

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/views"
)

// TestDefaultsMatchDocs checks that each default is in the comment of its option, of which docs/options.md is made, equals its constant,
// and applies with nil options.
func TestDefaultsMatchDocs(t *testing.T) {
	page := must.Get(os.ReadFile("docs/options.md"))(t)
	said := func(pattern string) string {
		m := regexp.MustCompile("(?m)^\\| `" + pattern).FindSubmatch(page)
		if m == nil {
			t.Errorf("docs/options.md has no %s", pattern)
			return ""
		}
		return strings.ReplaceAll(string(m[1]), " ", "")
	}
	o := must.Get((*Options)(nil).withDefaults())(t)
	if d := said("Prefix`.*Default \"([^\"]*)\""); o.Prefix != protocol.DefaultPrefix || d != protocol.DefaultPrefix {
		t.Errorf("Prefix: %q, %q, %q", o.Prefix, protocol.DefaultPrefix, d)
	}
	for pattern, x := range map[string]struct{ is, named time.Duration }{
		"HeartbeatInterval`.*Default (\\w+ \\w+)":              {o.HeartbeatInterval, protocol.DefaultHeartbeatInterval},
		"HeartbeatTimeout`.*Default (\\w+ \\w+)":               {o.HeartbeatTimeout, 3 * protocol.DefaultHeartbeatInterval},
		"MetadataTTL`.*Default (\\w+ \\w+)":                    {o.MetadataTTL, defaultMetadataTTL},
		"Retry.MinBackoff.*MinBackoff defaults to (\\w+ \\w+)": {o.Retry.MinBackoff, defaultMinBackoff},
		"Retry.MinBackoff.*; MaxBackoff to (\\w+ \\w+)":        {o.Retry.MaxBackoff, defaultMaxBackoff},
		"Retry.MaxElapsed`.*Default (\\w+ \\w+)":               {o.Retry.MaxElapsed, defaultMaxElapsed},
		"ReplicaAck.Timeout`.*Default (\\w+ \\w+)":             {o.ReplicaAck.Timeout, defaultReplicaAckTimeout},
		"TTL` \\| how long a lease.*Default (\\w+ \\w+)":       {DefaultTTL, DefaultTTL}, // what New does with it is in internal/testing/conformance
	} {
		d, err := time.ParseDuration(said(pattern))
		check.That(t, err == nil && x.is == d && x.named == d,
			"%s is %v, its constant %v, and docs/options.md says %v", pattern, x.is, x.named, d)
	}
	check.That(t, o.Logger != nil, "there is no logger")
}

// TestDerivedDefaults checks defaults that depend on other options.
func TestDerivedDefaults(t *testing.T) {
	type pair struct{ less, more time.Duration }
	heartbeat := func(interval, timeout time.Duration) pair {
		o := must.Get((&Options{HeartbeatInterval: interval, HeartbeatTimeout: timeout}).withDefaults())(t)
		return pair{o.HeartbeatInterval, o.HeartbeatTimeout}
	}
	backoff := func(least, most time.Duration) pair {
		o := must.Get((&Options{Retry: RetryPolicy{MinBackoff: least, MaxBackoff: most}}).withDefaults())(t)
		return pair{o.Retry.MinBackoff, o.Retry.MaxBackoff}
	}
	for want, got := range map[pair]pair{
		{time.Second, 3 * time.Second}:               heartbeat(time.Second, 0),
		{3 * time.Second, 9 * time.Second}:           heartbeat(0, 9*time.Second),
		{time.Minute, time.Minute}:                   backoff(time.Minute, 0),
		{5 * time.Millisecond, 5 * time.Millisecond}: backoff(0, 5*time.Millisecond),
	} {
		check.That(t, got == want, "%v, want %v", got, want)
	}
}

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
		holders := newHolders([]views.Holder{{Token: x.token, Owner: "o", Fence: 7, ExpiresIn: time.Second, Unconfirmed: true}})
		if want := (Holder{x.token, x.keeper, "o", time.UnixMicro(7), 7, time.Second, x.permits, x.writes, true, x.note, x.ahead}); !slices.Equal(holders, []Holder{want}) {
			t.Errorf("holders %+v, want %+v", holders, want)
		}
		waiters := newWaiters([]views.Waiter{{Token: x.token, Owner: "o", WaitTime: time.Minute, HeartbeatLeft: 1, HeartbeatAge: 5}})
		if want := (Waiter{x.token, x.keeper, "o", time.Minute, true, 5, x.permits, x.writes, x.note}); !slices.Equal(waiters, []Waiter{want}) {
			t.Errorf("waiters %+v, want %+v", waiters, want)
		}
	}
	list := newWaiters([]views.Waiter{{HeartbeatLeft: 0}})
	check.That(t, !list[0].Alive, "a waiter whose heartbeat has expired is alive")
}
