package timeline

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

const ms = time.Millisecond

// example is an act with two processes and a store, in which one is killed after 300 ms.
func example() *Act {
	a := &Act{
		Caption: "A lock: its holder is killed.",
		Lanes:   []string{"a", "b", "store"},
		Legend:  "  █ holds  · waits  x killed  ░ stored too late",
		Span:    time.Second,
		Notes:   []Event{{At: 310 * ms, Label: "a is killed"}},
	}
	for _, e := range []Event{ // not in the order of their times
		{At: 700 * ms, Lane: 1, State: Holding, Label: "+2", Count: "2 turns"},
		{Lane: 0, State: Waiting},
		{Lane: 1, State: Waiting, Count: "1 turn"},
		{At: 100 * ms, Lane: 0, State: Holding, Label: "+1", Count: "1 turn"},
		{At: 100 * ms, Lane: 2, State: Stored, Label: "a+1"},
		{At: 300 * ms, Lane: 0, State: Killed},
		{At: 800 * ms, Lane: 2, State: Stale, Label: "a+1"},
	} {
		a.Add(e)
	}
	return a
}

// over is the example when it is over.
func over() *Act {
	a := example()
	a.End, a.Outcome = time.Second, Violated
	a.Verdict = "two processes held the lock at the same time, for at least 3 ms of the second in which that was measured"
	return a
}

func drawn(lines []Line, color bool) string {
	s := "\n"
	for _, l := range lines {
		s += l.Text(color) + "\n"
	}
	return s
}

func TestFrameShowsWhatHasHappenedUntilNow(t *testing.T) {
	for i, a := range []*Act{example(), over()} { // played, and replayed
		half := drawn(a.Frame(500*ms), false)
		if !strings.Contains(half, "\n  b     ·······························                                  1 turn\n") ||
			strings.Contains(half, "+2") || !strings.HasSuffix(half, "a is killed\n") {
			t.Errorf("frame %d:%s", i, half)
		}
	}
	const want = `
A lock: its holder is killed.

  a     ······+1██████████x                                              1 turn
  b     ··········································+2█████████████████   2 turns
  store       a+1───────────────────────────────────────a+1░░░░░░░░░░
        0 s                           0.5                           1
  █ holds  · waits  x killed  ░ stored too late
  0.31 s  a is killed
  VIOLATED: two processes held the lock at the same time, for at least 3 ms of
            the second in which that was measured
`
	lines := over().Frame(time.Hour)
	if got := drawn(lines, false); got != want {
		t.Errorf("got:%s\nwant:%s", got, want)
	}
	colored := drawn(lines, true)
	for _, s := range []string{"\x1b[0;32m+2███", "\x1b[0;31mx\x1b[0m", "\x1b[0;31m  VIOLATED: \x1b[0mtwo", "\x1b[0;2m·\x1b[0m waits"} {
		check.That(t, strings.Contains(colored, s), "no %q in:\n%q", s, colored)
	}
	if got := regexp.MustCompile(`\x1b\[[0-9;]+m`).ReplaceAllString(colored, ""); got != want {
		t.Errorf("without the sequences for colors:%s\nwant:%s", got, want)
	}
}

func TestLanesInAStateTogether(t *testing.T) {
	for _, s := range []State{Holding, Sharing} {
		for end, want := range map[time.Duration]int{19: 0, 20: 0, 21: 1} {
			a := &Act{Lanes: []string{"a", "b"}}
			a.Add(Event{At: 20, Lane: 1, State: Holding})
			a.Add(Event{At: 10, State: s})
			a.Add(Event{At: end})
			if s == Holding {
				want++ // lane b itself
			}
			n := a.Together(s, Holding)
			check.That(t, n == want, "%d lanes in state %d beside one that holds from 20 on, until %d; want %d", n, s, end, want)
		}
	}
}
