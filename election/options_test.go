package election

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

// row returns the cells of an option of this package in a table of docs/options.md. Rows without the name of a package belong to that of
// the row before.
func row(t *testing.T, section, option string) (first, second string) {
	t.Helper()
	page, err := os.ReadFile("../docs/options.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## "+section)
	table, _, _ = strings.Cut(table, "\n## ")
	start := max(strings.Index(table, "| `election.Options."), 0)
	m := regexp.MustCompile("(?m)^\\| `(?:election\\.Options)?\\." + regexp.QuoteMeta(option) + "` \\|([^|]*)\\|([^|]*)\\|$").FindStringSubmatch(table[start:])
	if m == nil {
		t.Fatalf("docs/options.md, %s, has no %s", section, option)
	}
	return strings.ReplaceAll(m[1], " ", ""), strings.ReplaceAll(m[2], " ", "")
}

func parse(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDefaultsMatchDocs checks that each default is in the table of docs/options.md, equals the exported constant, and applies
// with nil options.
func TestDefaultsMatchDocs(t *testing.T) {
	o, err := (*Options)(nil).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	backoffs, _ := row(t, "Defaults", "MinBackoff`, `.MaxBackoff")
	first, longest, _ := strings.Cut(backoffs, ",")
	interval, _ := row(t, "Defaults", "WatchInterval")
	long, _ := row(t, "Defaults", "LongStepDown")
	for option, x := range map[string]struct {
		is, named time.Duration
		said      string
	}{
		"MinBackoff":    {o.MinBackoff, defaultMinBackoff, first},
		"MaxBackoff":    {o.MaxBackoff, defaultMaxBackoff, longest},
		"WatchInterval": {o.WatchInterval, defaultWatchInterval, interval},
		"LongStepDown":  {o.LongStepDown, defaultLongStepDown, long},
	} {
		if said := parse(t, x.said); x.is != said || x.named != said {
			t.Errorf("%s is %v, its constant %v, and docs/options.md says %q", option, x.is, x.named, x.said)
		}
	}
	if o.Logger == nil {
		t.Error("there is no logger")
	}
}

// TestLimitsMatchDocs checks that the limits of docs/options.md are accepted, and nothing beyond them.
func TestLimitsMatchDocs(t *testing.T) {
	for option, x := range map[string]struct {
		row string
		set func(*Options, time.Duration)
	}{
		"MinBackoff":    {"MinBackoff`, `.MaxBackoff", func(o *Options, d time.Duration) { o.MinBackoff = d }},
		"MaxBackoff":    {"MinBackoff`, `.MaxBackoff", func(o *Options, d time.Duration) { o.MaxBackoff = d }},
		"WatchInterval": {"WatchInterval`, `.LongStepDown", func(o *Options, d time.Duration) { o.WatchInterval = d }},
		"LongStepDown":  {"WatchInterval`, `.LongStepDown", func(o *Options, d time.Duration) { o.LongStepDown = d }},
	} {
		from, to := row(t, "Limits", x.row)
		least, most := parse(t, from), parse(t, to)
		for _, d := range []time.Duration{least, most, least - 1, most + 1} {
			var o Options
			x.set(&o, d)
			_, err := o.withDefaults()
			if allowed := d >= least && d <= most; allowed && err != nil || !allowed && !errors.Is(err, lockkeeper.ErrInvalid) {
				t.Errorf("%s %v: %v, and docs/options.md says %v to %v", option, d, err, least, most)
			}
		}
	}
}

// TestDerivedDefaults checks that a backoff that is set alone is not beyond the other one.
func TestDerivedDefaults(t *testing.T) {
	for _, x := range []struct{ set, want Options }{
		{Options{MinBackoff: time.Minute}, Options{MinBackoff: time.Minute, MaxBackoff: time.Minute}},
		{Options{MaxBackoff: time.Millisecond}, Options{MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond}},
		{Options{MinBackoff: time.Second}, Options{MinBackoff: time.Second, MaxBackoff: defaultMaxBackoff}},
		{Options{MaxBackoff: time.Minute}, Options{MinBackoff: defaultMinBackoff, MaxBackoff: time.Minute}},
	} {
		o, err := x.set.withDefaults()
		if err != nil || o.MinBackoff != x.want.MinBackoff || o.MaxBackoff != x.want.MaxBackoff {
			t.Errorf("%+v: MinBackoff %v, MaxBackoff %v, %v", x.set, o.MinBackoff, o.MaxBackoff, err)
		}
	}
}
