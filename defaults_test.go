package lockkeeper

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
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
		if err != nil || x.is != d || x.named != d {
			t.Errorf("%s is %v, its constant %v, and docs/options.md says %v", pattern, x.is, x.named, d)
		}
	}
	if o.Logger == nil {
		t.Error("there is no logger")
	}
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
		if got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
}
