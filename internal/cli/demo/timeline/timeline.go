// Package timeline models what several processes did over time, with one lane for each, and draws it as lines of text.
package timeline

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// State is what a process, or whatever else a lane stands for, does at some time.
type State int

// States of a lane.
const (
	Idle    State = iota
	Waiting       // for a lock
	Holding       // a lock that excludes others
	Sharing       // a lock together with others
	Frozen
	Killed
	Stored // a value that is up to date
	Stale  // a value that should not have been stored
	Refused
)

// Event is a change of the state of a lane.
type Event struct {
	At    time.Duration // since the start of the act
	Lane  int
	State State
	Label string // drawn where the state begins, for example a fence
	Count string // drawn at the end of the lane from now on, unless it is empty
}

// Outcome is what an act has shown about its guarantees.
type Outcome int

// Outcomes of an act.
const (
	Pending    Outcome = iota // the act is not over
	Kept                      // the guarantees were kept
	Violated                  // a guarantee was violated
	Incomplete                // the machine was too slow to tell
)

// Act is one part of the demo: lanes, and what has happened in them so far.
type Act struct {
	Caption string
	Lanes   []string      // names
	Legend  string        // explains the glyphs of the states, which follow two blanks
	Span    time.Duration // of the axis; it grows if the act takes longer
	Events  []Event       // in the order of their times
	Notes   []Event       // sentences about what happened, as labels
	End     time.Duration // when the act ended; 0 while it goes on
	Outcome Outcome
	Verdict string // what was measured, or what went wrong
}

// Add inserts an event. Events of different processes may be added in another order than that in which they happened.
func (a *Act) Add(e Event) {
	i := len(a.Events)
	for i > 0 && a.Events[i-1].At > e.At {
		i--
	}
	a.Events = slices.Insert(a.Events, i, e)
}

// Together returns the largest number of lanes that were in state s at one time while some lane was in state with.
func (a *Act) Together(s, with State) (most int) {
	states := make([]State, len(a.Lanes))
	for i, e := range a.Events {
		states[e.Lane] = e.State
		if i+1 < len(a.Events) && a.Events[i+1].At == e.At || !slices.Contains(states, with) {
			continue
		}
		n := 0
		for _, state := range states {
			if state == s {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// Width is the largest width of a drawing, in characters.
const Width = 79

const countWidth = 9 // of the counts at the end of the lanes

// Cell is one character of a drawing. Its color depends on its state.
type Cell struct {
	Glyph rune
	State State
}

// Bar reports whether the cell is part of a bar, not of a text.
func (c Cell) Bar() bool { return c.State != Idle && c.Glyph == looks[c.State].glyph }

// Line is a line of a drawing.
type Line []Cell

// looks are how states are drawn. Each has a glyph of its own, because colors may be missing or not be distinguished. Where several
// states meet in one cell, that of the highest priority is drawn.
var looks = [...]struct {
	glyph    rune
	color    string // parameters of the escape sequence
	priority int
}{
	Idle:    {' ', "0", 0},
	Waiting: {'·', "0;2", 1},
	Holding: {'█', "0;32", 5},
	Sharing: {'▒', "0;34", 4},
	Frozen:  {'~', "0;36", 2},
	Killed:  {'x', "0;31", 6},
	Stored:  {'─', "0;32", 1},
	Stale:   {'░', "0;31", 5},
	Refused: {'!', "0;33", 5},
}

// text returns a text as cells of a state.
func text(s string, state State) (l Line) {
	for _, r := range s {
		l = append(l, Cell{r, state})
	}
	return l
}

// Text returns the line, with the escape sequences of ECMA-48 for colors if they are wanted.
func (l Line) Text(color bool) string {
	var b strings.Builder
	last := Idle
	for _, c := range l {
		if color && c.State != last {
			fmt.Fprintf(&b, "\x1b[%sm", looks[c.State].color)
		}
		last = c.State
		b.WriteRune(c.Glyph)
	}
	if color && last != Idle {
		b.WriteString("\x1b[0m")
	}
	return strings.TrimRight(b.String(), " ")
}

// Frame draws what has happened in an act until now. Later frames have the same lines, and more.
func (a *Act) Frame(now time.Duration) []Line {
	length := a.Span
	if a.End > 0 {
		now, length = min(now, a.End), a.End
	} else if now > length {
		length = now + now/4 // so that it need not grow with each frame
	}
	indent := 0
	for _, n := range a.Lanes {
		indent = max(indent, 3+utf8.RuneCountInString(n))
	}
	width := Width - indent - 1 - countWidth
	lines := []Line{text(a.Caption, Idle), nil}
	for i, name := range a.Lanes {
		row, count := a.lane(i, now, width, length)
		line := append(text(fmt.Sprintf("  %-*s", indent-2, name), Idle), row...)
		lines = append(lines, append(line, text(fmt.Sprintf(" %*s", countWidth, count), Idle)...))
	}
	legend := text(a.Legend, Idle)
	for s, look := range looks {
		if i := strings.Index(a.Legend, "  "+string(look.glyph)); i >= 0 {
			legend[utf8.RuneCountInString(a.Legend[:i])+2].State = State(s)
		}
	}
	lines = append(lines, text(strings.Repeat(" ", indent)+marks(width, length), Idle), legend)
	for _, n := range a.Notes {
		if n.At <= now {
			lines = append(lines, wrap(fmt.Sprintf("  %.2f s  ", n.At.Seconds()), Idle, n.Label)...)
		}
	}
	if a.Outcome != Pending && now == a.End {
		lines = append(lines, a.Conclusion()...)
	}
	return lines
}

// lane draws what a lane did until now, and returns its latest count. Bars leave out labels.
func (a *Act) lane(lane int, now time.Duration, width int, length time.Duration) (row Line, count string) {
	row = text(strings.Repeat(" ", width), Idle)
	column := func(at time.Duration) int { return min(int(at*time.Duration(width)/length), width-1) }
	state, since, free := Idle, 0, 0 // free is the first column after the previous label
	fill := func(to int) {
		for c := since; c <= to && (state != Killed || c == since); c++ {
			label := row[c].State != Idle && !row[c].Bar()
			if !label && looks[state].priority >= looks[row[c].State].priority {
				row[c] = Cell{looks[state].glyph, state}
			}
		}
	}
	for _, e := range a.Events {
		if e.Lane != lane || e.At > now {
			continue
		}
		fill(column(e.At))
		state, since = e.State, column(e.At)
		label := text(e.Label, e.State)
		if from := max(min(since, width-len(label)), free); len(label) > 0 && from+len(label) <= width {
			free = from + copy(row[from:], label)
		}
		if e.Count != "" {
			count = e.Count
		}
	}
	fill(column(now))
	return row, count
}

// marks draws the marks of the time axis.
func marks(width int, length time.Duration) string {
	const step = 500 * time.Millisecond
	row := "0 s"
	for at := step; at <= length; at += step {
		mark := strconv.FormatFloat(at.Seconds(), 'f', -1, 64)
		if space := min(int(at*time.Duration(width)/length), width-len(mark)) - len(row); space > 0 {
			row += strings.Repeat(" ", space) + mark
		}
	}
	return row
}

// Conclusion returns the lines of the verdict.
func (a *Act) Conclusion() []Line {
	mark, state := "  incomplete: ", Refused
	switch a.Outcome {
	case Kept:
		mark, state = "  ok: ", Holding
	case Violated:
		mark, state = "  VIOLATED: ", Killed
	}
	return wrap(mark, state, a.Verdict)
}

// wrap breaks a text into lines, at spaces. The first one begins with a prefix, the others are indented by its length.
func wrap(prefix string, state State, s string) (lines []Line) {
	line := text(prefix, state)
	for _, word := range strings.Fields(s) {
		if len(line)+utf8.RuneCountInString(word) > Width {
			lines = append(lines, line)
			line = text(strings.Repeat(" ", len(prefix)), Idle)
		}
		line = append(line, text(word+" ", Idle)...)
	}
	return append(lines, line)
}
