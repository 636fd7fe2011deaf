package timeline

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

const ms = time.Millisecond

// example is an act with two processes and a store, in which one is killed after 300 ms.
func example() *Act {
	a := &Act{
		Caption: "A lock: its holder is killed.",
		Lanes:   []string{"a", "b", "store"},
		Legend:  []Word{{Holding, "holds"}, {Waiting, "waits"}, {Killed, "killed"}, {Stale, "stored too late"}},
		Span:    time.Second,
		Counts:  []string{"1 turn", "2 turns", ""},
	}
	a.Add(0, 0, Waiting, "")
	a.Add(0, 1, Waiting, "")
	a.Add(100*ms, 0, Holding, "+1")
	a.Add(100*ms, 2, Stored, "a+1")
	a.Add(300*ms, 0, Killed, "")
	a.Add(310*ms, 0, Idle, "") // sent before
	a.Add(700*ms, 1, Holding, "+2")
	a.Add(800*ms, 2, Stale, "a+1")
	return a
}

// check compares lines with those of want, which begins and ends with a line break.
func check(t *testing.T, got []string, want string) {
	t.Helper()
	if g := "\n" + strings.Join(got, "\n") + "\n"; g != want {
		t.Errorf("got:%s\nwant:%s", g, want)
	}
}

func TestFrameShowsEachLaneUntilNow(t *testing.T) {
	check(t, Text{Width: 60}.Frame(example(), 500*ms), `
A lock: its holder is killed.

  a     ····+1██████x                                 1 turn
  b     ······················                       2 turns
  store     a+1───────────────
        0 s     0.2     0.4      0.6     0.8     1
        █ holds   · waits   x killed   ░ stored too late
`)
}

func TestFrameOfAnActThatIsOver(t *testing.T) {
	a := example()
	a.Finish(time.Second, Violated, "two processes held the lock at the same time, for at least 3 ms")
	check(t, Text{Width: 60}.Frame(a, time.Hour), `
A lock: its holder is killed.

  a     ····+1██████x                                 1 turn
  b     ·····························+2███████████   2 turns
  store     a+1──────────────────────────a+1░░░░░░
        0 s     0.2     0.4      0.6     0.8     1
        █ holds   · waits   x killed   ░ stored too late
  VIOLATED: two processes held the lock at the same time,
            for at least 3 ms
`)
}

func TestNarrowFrameHasNoCounts(t *testing.T) {
	a := example()
	a.Finish(time.Second, Kept, "1 holder at a time")
	check(t, Text{Width: 40}.Frame(a, time.Second), `
A lock: its holder is killed.

  a     ···+1████x
  b     ······················+2████████
  store    a+1───────────────────a+1░░░░
        0 s   0.2   0.4    0.6   0.8   1
        █ holds   · waits   x killed
        ░ stored too late
  ok: 1 holder at a time
`)
}

func TestAxisGrowsWithAnActThatTakesLonger(t *testing.T) {
	a := example()
	for _, c := range []struct{ now, length, step time.Duration }{
		{0, time.Second, 200 * ms},
		{time.Second, time.Second, 200 * ms},
		{2 * time.Second, 2500 * ms, 500 * ms},
		{20 * time.Second, 25 * time.Second, 5 * time.Second},
	} {
		if length, step := a.Axis(c.now); length != c.length || step != c.step {
			t.Errorf("at %v the axis has %v and marks every %v, want %v and %v", c.now, length, step, c.length, c.step)
		}
	}
}

func TestFrameOfAnyWidthFits(t *testing.T) {
	a := example()
	a.Finish(900*ms, Incomplete, "the machine paused a process")
	for width := range 130 {
		for now := time.Duration(0); now <= time.Second; now += 90 * ms {
			for _, l := range (Text{Width: width}).Frame(a, now) {
				if n := utf8.RuneCountInString(l); n > max(width, MinWidth) || n > MaxWidth {
					t.Fatalf("at width %d a line has %d characters: %s", width, n, l)
				}
			}
		}
	}
}

func TestColorsAreOnlyAddedToTheText(t *testing.T) {
	a := example()
	a.Finish(time.Second, Kept, "1 holder at a time")
	colored := strings.Join(Text{Width: 80, Color: true}.Frame(a, time.Second), "\n")
	for _, s := range []string{"\x1b[32m+2███", "\x1b[31mx\x1b[0m", "\x1b[32mok:\x1b[0m 1 holder"} {
		if !strings.Contains(colored, s) {
			t.Errorf("no %q in:\n%q", s, colored)
		}
	}
	for _, code := range []string{"0", "2", "31", "32", "33", "34", "36"} {
		colored = strings.ReplaceAll(colored, "\x1b["+code+"m", "")
	}
	if plain := strings.Join(Text{Width: 80}.Frame(a, time.Second), "\n"); colored != plain {
		t.Errorf("without colors:\n%s\nwithout the sequences:\n%s", plain, colored)
	}
}

func TestEveryStateHasAGlyphOfItsOwn(t *testing.T) {
	used := map[rune]State{}
	for s := Idle; s <= Refused; s++ {
		l, known := looks[s]
		if other, twice := used[l.glyph]; !known || twice {
			t.Errorf("state %d has the glyph %q, as state %d", s, l.glyph, other)
		}
		used[l.glyph] = s
	}
}
