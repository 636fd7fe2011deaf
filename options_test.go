package lockkeeper_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/mutex"
)

// TestDefaultsMatchDocs checks that each default is in the comment of its option, of which docs/options.md is made, and applies with
// nil options.
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
	o := configured(t, nil)
	if d := said("Prefix`.*Default \"([^\"]*)\""); o.Prefix != d {
		t.Errorf("Prefix: %q, and docs/options.md says %q", o.Prefix, d)
	}
	k := must.Get(lockkeeper.New(noServer(t), &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Majority: true}}))(t)
	_, err := mutex.New(k, "x", &mutex.Options{TTL: 100 * time.Millisecond})
	must.That(t, err != nil, "a lease may end before replicas have it")
	says := err.Error()
	replicaAckTimeout := must.Get(time.ParseDuration(says[strings.LastIndex(says, " ")+1:]))(t) // "... ReplicaAck.Timeout 1s"
	for pattern, is := range map[string]time.Duration{
		"HeartbeatInterval`.*Default (\\w+ \\w+)":              o.HeartbeatInterval,
		"HeartbeatTimeout`.*Default (\\w+ \\w+)":               o.HeartbeatTimeout,
		"MetadataTTL`.*Default (\\w+ \\w+)":                    o.MetadataTTL,
		"Retry.MinBackoff.*MinBackoff defaults to (\\w+ \\w+)": o.Retry.MinBackoff,
		"Retry.MinBackoff.*; MaxBackoff to (\\w+ \\w+)":        o.Retry.MaxBackoff,
		"Retry.MaxElapsed`.*Default (\\w+ \\w+)":               o.Retry.MaxElapsed,
		"ReplicaAck.Timeout`.*Default (\\w+ \\w+)":             replicaAckTimeout,
		"TTL` \\| how long a lease.*Default (\\w+ \\w+)":       lockkeeper.DefaultTTL, // what New does with it is in internal/testing/conformance
	} {
		d, err := time.ParseDuration(said(pattern))
		check.That(t, err == nil && is == d, "%s is %v, and docs/options.md says %v", pattern, is, d)
	}
	check.That(t, o.Log != nil, "there is no logger")
}

// configured is what a keeper makes of options.
func configured(t *testing.T, o *lockkeeper.Options) server.Config {
	t.Helper()
	return access.ServerOf(must.Get(lockkeeper.New(noServer(t), o))(t)).Config
}

// TestDerivedDefaults checks defaults that depend on other options.
func TestDerivedDefaults(t *testing.T) {
	type pair struct{ less, more time.Duration }
	heartbeat := func(interval, timeout time.Duration) pair {
		o := configured(t, &lockkeeper.Options{HeartbeatInterval: interval, HeartbeatTimeout: timeout})
		return pair{o.HeartbeatInterval, o.HeartbeatTimeout}
	}
	backoff := func(least, most time.Duration) pair {
		o := configured(t, &lockkeeper.Options{Retry: lockkeeper.RetryPolicy{MinBackoff: least, MaxBackoff: most}})
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
