package election

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// said returns the durations that a pattern finds in the section of docs/options.md about this package, which is made of the comments.
func said(t *testing.T, pattern string) (found []time.Duration) {
	t.Helper()
	page := must.Get(os.ReadFile("../docs/options.md"))(t)
	_, table, _ := strings.Cut(string(page), "\n## election\n")
	table, _, _ = strings.Cut(table, "\n## ")
	m := regexp.MustCompile("(?m)^\\| `" + pattern).FindStringSubmatch(table)
	must.That(t, m != nil, "docs/options.md has no %s", pattern)
	for _, text := range m[1:] {
		d := must.Get(time.ParseDuration(strings.ReplaceAll(text, " ", "")))(t)
		found = append(found, d)
	}
	return found
}

// TestDefaultsMatchDocs checks that each default is in the comment of its option and applies with nil options.
func TestDefaultsMatchDocs(t *testing.T) {
	o := must.Get((*Options)(nil).withDefaults())(t)
	for pattern, is := range map[string]time.Duration{
		"MinBackoff`.*MinBackoff defaults to (\\w+ \\w+)": o.MinBackoff,
		"MinBackoff`.*; MaxBackoff to (\\w+ \\w+)":        o.MaxBackoff,
		"WatchInterval`.*Default (\\w+ \\w+)":             o.WatchInterval,
		"LongStepDown`.*Default (\\w+ \\w+)":              o.LongStepDown,
	} {
		d := said(t, pattern)[0]
		check.That(t, is == d, "%s is %v, and docs/options.md says %v", pattern, is, d)
	}
	check.That(t, o.Logger != nil, "there is no logger")
}

// TestLimitsMatchDocs checks that the limits in the comments are accepted, and nothing beyond them.
func TestLimitsMatchDocs(t *testing.T) {
	for option, x := range map[string]struct {
		row string
		set func(time.Duration) Options
	}{
		"MinBackoff":    {"MinBackoff", func(d time.Duration) Options { return Options{MinBackoff: d} }},
		"MaxBackoff":    {"MinBackoff", func(d time.Duration) Options { return Options{MaxBackoff: d} }},
		"WatchInterval": {"WatchInterval", func(d time.Duration) Options { return Options{WatchInterval: d} }},
		"LongStepDown":  {"LongStepDown", func(d time.Duration) Options { return Options{LongStepDown: d} }},
	} {
		bounds := said(t, x.row+"`.*From (\\w+ \\w+) to (\\w+ \\w+)")
		least, most := bounds[0], bounds[1]
		for _, d := range []time.Duration{least, most, least - 1, most + 1} {
			o := x.set(d)
			_, err := o.withDefaults()
			text := fmt.Sprint(err)
			refused := strings.Contains(text, option+" "+d.String()) && errors.Is(err, lockkeeper.ErrInvalid)
			if allowed := d >= least && d <= most; allowed && err != nil || !allowed && !refused {
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
		set, want := x.set, x.want
		o, err := set.withDefaults()
		check.That(t, err == nil && o.MinBackoff == want.MinBackoff && o.MaxBackoff == want.MaxBackoff,
			"%+v: MinBackoff %v, MaxBackoff %v, %v", set, o.MinBackoff, o.MaxBackoff, err)
	}
}
