package lockkeeper

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
)

// TestDefaultsMatchDocs checks that each default is in the table of docs/options.md, equals its constant,
// and applies with nil options.
func TestDefaultsMatchDocs(t *testing.T) {
	page, err := os.ReadFile("docs/options.md")
	if err != nil {
		t.Fatal(err)
	}
	row := func(option string) string {
		m := regexp.MustCompile("(?m)^\\| `[^|]*" + regexp.QuoteMeta(option) + "`[^|]*\\| ([^|]*?) *\\|").FindSubmatch(page)
		if m == nil {
			t.Errorf("the table has no %s", option)
			return ""
		}
		return strings.ReplaceAll(strings.Trim(string(m[1]), "`"), " ", "")
	}
	o, err := (*Options)(nil).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if o.Prefix != protocol.DefaultPrefix || row("Prefix") != protocol.DefaultPrefix {
		t.Errorf("Prefix: %q, %q, %q", o.Prefix, protocol.DefaultPrefix, row("Prefix"))
	}
	for option, x := range map[string]struct{ is, named time.Duration }{
		".HeartbeatInterval": {o.HeartbeatInterval, protocol.DefaultHeartbeatInterval},
		".HeartbeatTimeout":  {o.HeartbeatTimeout, 3 * protocol.DefaultHeartbeatInterval},
		".MetadataTTL":       {o.MetadataTTL, defaultMetadataTTL},
		".Retry.MaxElapsed":  {o.Retry.MaxElapsed, defaultMaxElapsed},
		"Options.TTL":        {DefaultTTL, DefaultTTL}, // what New does with it is in internal/testing/conformance
	} {
		said, err := time.ParseDuration(row(option))
		if err != nil || x.is != said || x.named != said {
			t.Errorf("%s is %v, its constant %v, and docs/options.md says %q", option, x.is, x.named, row(option))
		}
	}
	if want := "10ms,1s"; row(".Retry.MinBackoff`, `.MaxBackoff") != want || o.Retry.MinBackoff != defaultMinBackoff || o.Retry.MaxBackoff != defaultMaxBackoff ||
		fmt.Sprintf("%v,%v", o.Retry.MinBackoff, o.Retry.MaxBackoff) != want {
		t.Errorf("Retry: %v, docs/options.md says %s", o.Retry, row(".Retry.MinBackoff`, `.MaxBackoff"))
	}
	if o.ReplicaAck.Timeout != defaultReplicaAckTimeout || !strings.Contains(string(page), "`.Timeout` 1 s") || o.ReplicaAck.Timeout != time.Second {
		t.Errorf("ReplicaAck.Timeout is %v", o.ReplicaAck.Timeout)
	}
	if o.Logger == nil {
		t.Error("there is no logger")
	}
}

// TestDerivedDefaults checks defaults that depend on other options.
func TestDerivedDefaults(t *testing.T) {
	for _, x := range []struct{ set, want Options }{
		{Options{HeartbeatInterval: time.Second}, Options{HeartbeatInterval: time.Second, HeartbeatTimeout: 3 * time.Second}},
		{Options{HeartbeatTimeout: 9 * time.Second}, Options{HeartbeatInterval: 3 * time.Second, HeartbeatTimeout: 9 * time.Second}},
		{Options{Retry: RetryPolicy{MinBackoff: time.Minute}}, Options{Retry: RetryPolicy{MinBackoff: time.Minute, MaxBackoff: time.Minute}}},
		{Options{Retry: RetryPolicy{MaxBackoff: 5 * time.Millisecond}}, Options{Retry: RetryPolicy{MinBackoff: 5 * time.Millisecond, MaxBackoff: 5 * time.Millisecond}}},
	} {
		o, err := x.set.withDefaults()
		if err != nil {
			t.Errorf("%+v: %v", x.set, err)
		}
		if x.want.HeartbeatInterval != 0 && (o.HeartbeatInterval != x.want.HeartbeatInterval || o.HeartbeatTimeout != x.want.HeartbeatTimeout) {
			t.Errorf("%+v: HeartbeatInterval %v, HeartbeatTimeout %v", x.set, o.HeartbeatInterval, o.HeartbeatTimeout)
		}
		if x.want.Retry.MinBackoff != 0 && (o.Retry.MinBackoff != x.want.Retry.MinBackoff || o.Retry.MaxBackoff != x.want.Retry.MaxBackoff) {
			t.Errorf("%+v: Retry %v", x.set, o.Retry)
		}
	}
}
