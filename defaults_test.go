package lockkeeper

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestTheDefaultsAreThoseOfTheReadme: each is in its table, is the exported constant, and is what nothing set amounts to.
func TestTheDefaultsAreThoseOfTheReadme(t *testing.T) {
	page, err := os.ReadFile("README.md")
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
	if o.Prefix != DefaultPrefix || row("Prefix") != DefaultPrefix {
		t.Errorf("Prefix: %q, %q, %q", o.Prefix, DefaultPrefix, row("Prefix"))
	}
	for option, x := range map[string]struct{ is, named time.Duration }{
		".Heartbeat":         {o.Heartbeat, DefaultHeartbeat},
		".HeartbeatLifetime": {o.HeartbeatLifetime, DefaultHeartbeatLifetime},
		".Idle":              {o.Idle, DefaultIdle},
		".Retry.GiveUp":      {o.Retry.GiveUp, DefaultGiveUp},
		"Options.TTL":        {DefaultTTL, DefaultTTL}, // what New does with it is in internal/testing/conformance
	} {
		said, err := time.ParseDuration(row(option))
		if err != nil || x.is != said || x.named != said {
			t.Errorf("%s is %v, its constant %v, and README says %q", option, x.is, x.named, row(option))
		}
	}
	if want := "10ms,1s"; row(".Retry.Min`, `.Max") != want || o.Retry.Min != DefaultRetryMin || o.Retry.Max != DefaultRetryMax ||
		fmt.Sprintf("%v,%v", o.Retry.Min, o.Retry.Max) != want {
		t.Errorf("Retry: %v, README says %s", o.Retry, row(".Retry.Min`, `.Max"))
	}
	if o.Acknowledge.Within != DefaultAcknowledgeWithin || !strings.Contains(string(page), "`.Within` 1 s") || o.Acknowledge.Within != time.Second {
		t.Errorf("Acknowledge.Within is %v", o.Acknowledge.Within)
	}
	if o.Logger == nil {
		t.Error("there is no logger")
	}
}

// TestDefaultsFollowWhatIsSet: as the options say.
func TestDefaultsFollowWhatIsSet(t *testing.T) {
	for _, x := range []struct{ set, want Options }{
		{Options{Heartbeat: time.Second}, Options{Heartbeat: time.Second, HeartbeatLifetime: 3 * time.Second}},
		{Options{HeartbeatLifetime: 9 * time.Second}, Options{Heartbeat: 3 * time.Second, HeartbeatLifetime: 9 * time.Second}},
		{Options{Retry: RetryPolicy{Min: time.Minute}}, Options{Retry: RetryPolicy{Min: time.Minute, Max: time.Minute}}},
		{Options{Retry: RetryPolicy{Max: 5 * time.Millisecond}}, Options{Retry: RetryPolicy{Min: 5 * time.Millisecond, Max: 5 * time.Millisecond}}},
	} {
		o, err := x.set.withDefaults()
		if err != nil {
			t.Errorf("%+v: %v", x.set, err)
		}
		if x.want.Heartbeat != 0 && (o.Heartbeat != x.want.Heartbeat || o.HeartbeatLifetime != x.want.HeartbeatLifetime) {
			t.Errorf("%+v: Heartbeat %v, HeartbeatLifetime %v", x.set, o.Heartbeat, o.HeartbeatLifetime)
		}
		if x.want.Retry.Min != 0 && (o.Retry.Min != x.want.Retry.Min || o.Retry.Max != x.want.Retry.Max) {
			t.Errorf("%+v: Retry %v", x.set, o.Retry)
		}
	}
}
