package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

func (r *result) perSecond() float64 { return float64(r.reads) / r.length.Seconds() }

func (r *result) commandsPer1000() float64 { return 1000 * float64(r.commands) / float64(r.reads) }

// print writes a table with a column for each way, and two charts.
func print(out io.Writer, all []*result) {
	row := func(label string, cell func(*result) string) {
		fmt.Fprintf(out, "%-25s", label)
		for _, r := range all {
			fmt.Fprintf(out, "%12s", cell(r))
		}
		fmt.Fprintln(out)
	}
	wait := func(pick func([]time.Duration) time.Duration) func(*result) string {
		return func(r *result) string {
			if len(r.waits) == 0 {
				return "-"
			}
			return millis(pick(r.waits))
		}
	}
	row("", func(r *result) string { return r.name })
	row("reads", func(r *result) string { return thousands(r.reads) })
	row("reads of mixed versions", func(r *result) string { return thousands(r.mixed) })
	row("stale reads", func(r *result) string { return thousands(r.stale) })
	row("  the oldest, ms", func(r *result) string {
		if r.stale == 0 {
			return "-"
		}
		return millis(r.oldest)
	})
	row("Redis commands", func(r *result) string { return thousands(int(r.commands)) })
	row("writes", func(r *result) string { return thousands(r.writes) })
	row("a writer's wait, ms", wait(func(l []time.Duration) time.Duration {
		l = slices.Sorted(slices.Values(l))
		return l[len(l)/2]
	}))
	row("  the longest, ms", wait(slices.Max[[]time.Duration]))

	chart(out, "Redis commands per 1,000 reads", all, (*result).commandsPer1000)
	chart(out, "reads per second", all, (*result).perSecond)
	fmt.Fprint(out, `
Commands include those of the writer; a script counts as one. A stale read
returned an older version than the last one that was written before it began.
The wait is from the request for the write lock to its grant. It is at most
Linger longer than without it. The pointer's reads take no lock: some are stale
by design.
`)
}

// chart writes a bar for each way, from zero.
func chart(out io.Writer, title string, all []*result, of func(*result) float64) {
	const width = 50
	most := 0.0
	for _, r := range all {
		most = max(most, of(r))
	}
	fmt.Fprintf(out, "\n%s\n", title)
	for _, r := range all {
		bar := strings.Repeat("#", int(of(r)/most*width+0.5))
		fmt.Fprintf(out, "  %-12s %s %s\n", r.name, bar, thousands(int(of(r)+0.5)))
	}
}

// check returns an error if a read under a lock was mixed or stale.
func check(all []*result) error {
	for _, r := range all {
		if r.waits != nil && r.mixed+r.stale > 0 {
			return fmt.Errorf("%s: %d mixed and %d stale reads", r.name, r.mixed, r.stale)
		}
	}
	return nil
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()*1000) }

// thousands writes a number with commas.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
