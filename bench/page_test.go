package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

var pages = []string{"../docs/benchmarks.md", "../README.md"}

// TestPagesHaveEachTableOnce: what the pages ask for is there, and nothing is made that no page has.
func TestPagesHaveEachTableOnce(t *testing.T) {
	want := []string{"run"}
	for _, table := range pageTables {
		want = append(want, table.name)
	}
	var got []string
	for _, page := range pages {
		text := must.Get(os.ReadFile(page))(t)
		for _, m := range marks.FindAllStringSubmatch(string(text), -1) {
			got = append(got, m[2])
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	check.That(t, slices.Equal(got, want), "the pages have the tables %q, there are %q", got, want)
}

// TestFiguresOfPagesAreMeasured: each figure that a table shows is added by a case, of which the last part may be a number.
func TestFiguresOfPagesAreMeasured(t *testing.T) {
	known := []string{"scale/waiters=", "scale/leases="}
	for _, c := range cases {
		known = append(known, c.name)
	}
	for _, table := range pageTables {
		for _, f := range table.figures {
			check.That(t, slices.ContainsFunc(known, func(name string) bool { return strings.HasPrefix(f.of, name) }),
				"%s: %s is none of %q", table.name, f.of, known)
		}
	}
}

func TestFillReplacesWhatStandsBetween(t *testing.T) {
	defer func(was []table) { pageTables = was }(pageTables)
	pageTables = []table{
		{name: "laps", figures: []figure{{title: "s", of: "lap/runners=2", metric: "ms/lap", scale: 1e-3}, {title: "naps", of: "lap/runners=2", metric: "naps"}}},
		{name: "best", columns: []column{named("tortoise", "tortoise"), named("snail", "snail")}, figures: []figure{
			{title: "ms and naps", of: "lap/runners=2", metric: "ms/lap", to: "naps"},
		}},
	}
	const page = "Text.\n\n<!-- bench: laps -->\n\nold\n\n<!-- end -->\n\nMore.\n<!-- bench: best -->\n<!-- end -->\n<!-- bench: run -->\nx\n<!-- end -->\n"
	got := must.Get(filled(page, sample(), "Now.\n"))(t)
	const want = `Text.

<!-- bench: laps -->

| | s | naps |
|---|---|---|
| hare | 0.02 [0.01–0.03] | |
| tortoise | 2 [1–3] | 0 |

<!-- end -->

More.
<!-- bench: best -->

| | tortoise | snail |
|---|---|---|
| ms and naps | 2000 to 0 | |

<!-- end -->
<!-- bench: run -->

Now.

<!-- end -->
`
	check.That(t, got == want, "the page is\n%s\nwant\n%s", got, want)
	if again, err := filled(got, sample(), "Now.\n"); err != nil || again != got {
		t.Errorf("filled again: %v\n%s", err, again)
	}
	if _, err := filled("<!-- bench: other -->\n<!-- end -->", sample(), ""); err == nil {
		t.Error("a page asks for a table that there is not, and nothing is said")
	}
}

func TestGroupedThousands(t *testing.T) {
	for n, want := range map[string]string{"1234": "1234", "12345": "12,345", "3065000": "3,065,000", "-12345": "-12,345", "0.5": "0.5", "123456.7": "123,456.7"} {
		got := grouped(n)
		check.That(t, got == want, "grouped(%q) = %q, want %q", n, got, want)
	}
}

// TestNoiseIsZero checks that a figure far below its unit is not shown in the notation of programs.
func TestNoiseIsZero(t *testing.T) {
	for v, want := range map[float64]string{1.2e-05: "0", 0.00012: "0", 0.0097: "0.0097", 18.8: "18.8"} {
		got := figure{}.scaled(v)
		check.That(t, got == want, "scaled(%v) = %q, want %q", v, got, want)
	}
}
