package timeline

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Text draws acts as lines of text.
type Text struct {
	Width int  // of a line, in characters; at least MinWidth
	Color bool // use the escape sequences of ECMA-48 for colors
}

// MinWidth is the smallest width of a drawing, MaxWidth the largest that is of use.
const (
	MinWidth = 40
	MaxWidth = 100
)

// look is how a state is drawn. Each has a glyph of its own, because colors may be missing or not be distinguished.
type look struct {
	glyph    rune
	color    string // parameters of the escape sequence
	priority int    // of states that meet in one cell
}

var looks = map[State]look{
	Idle:    {' ', "", 0},
	Waiting: {'·', "2", 1},
	Holding: {'█', "32", 5},
	Sharing: {'▒', "34", 4},
	Frozen:  {'~', "36", 2},
	Killed:  {'x', "31", 6},
	Stored:  {'─', "32", 1},
	Stale:   {'░', "31", 5},
	Refused: {'!', "33", 5},
}

// cell is a character of a lane.
type cell struct {
	glyph rune
	state State
}

// Frame draws an act at a time. The number of lines depends only on the width and on whether the act is over.
func (t Text) Frame(a *Act, now time.Duration) (lines []string) {
	t.Width = min(max(t.Width, MinWidth), MaxWidth)
	names, counts := 0, 9
	for _, n := range a.Lanes {
		names = max(names, utf8.RuneCountInString(n))
	}
	for _, c := range a.Counts {
		counts = max(counts, utf8.RuneCountInString(c))
	}
	if t.Width < 60 {
		counts = -1 // no room
	}
	width := t.Width - 2 - names - 1 - counts - 1
	length, step := a.Axis(now)
	lines = append(Wrap(a.Caption, t.Width), "")
	for i, name := range a.Lanes {
		line := fmt.Sprintf("  %-*s ", names, name) + t.paint(cells(a.Segments(i, now), width, length))
		if i < len(a.Counts) && counts > 0 {
			line += fmt.Sprintf(" %*s", counts, a.Counts[i])
		}
		lines = append(lines, strings.TrimRight(line, " "))
	}
	lines = append(lines, strings.TrimRight(strings.Repeat(" ", names+3)+axis(width, length, step), " "))
	lines = append(lines, t.legend(a, names+3)...)
	if a.Outcome != Pending {
		lines = append(lines, t.verdict(a)...)
	}
	return lines
}

// cells draws the segments of a lane. Where several states meet in a cell, the most important one is drawn.
func cells(segments []Segment, width int, length time.Duration) []cell {
	row := make([]cell, width)
	for i := range row {
		row[i].glyph = ' '
	}
	column := func(at time.Duration) int { return min(int(at*time.Duration(width)/length), width-1) }
	for _, s := range segments {
		l := looks[s.State]
		for c := column(s.From); c <= column(s.To); c++ {
			if l.priority >= looks[row[c].state].priority {
				row[c] = cell{l.glyph, s.State}
			}
			if s.State == Killed {
				break
			}
		}
	}
	end := 0 // of the previous label
	for _, s := range segments {
		n, from := utf8.RuneCountInString(s.Label), column(s.From)
		if n == 0 {
			continue
		}
		from = max(min(from, width-n), end)
		if from+n > width {
			continue
		}
		for i, r := range []rune(s.Label) {
			row[from+i] = cell{r, s.State}
		}
		end = from + n
	}
	return row
}

// paint returns the cells as text, with colors if they are wanted.
func (t Text) paint(row []cell) string {
	var b strings.Builder
	color := ""
	set := func(c string) {
		if !t.Color || c == color {
			return
		}
		if color != "" {
			b.WriteString("\x1b[0m")
		}
		if c != "" {
			b.WriteString("\x1b[" + c + "m")
		}
		color = c
	}
	for _, c := range row {
		set(looks[c.state].color)
		b.WriteRune(c.glyph)
	}
	set("")
	return b.String()
}

// axis draws the marks of the time axis.
func axis(width int, length, step time.Duration) string {
	row := []rune(strings.Repeat(" ", width))
	end := 0
	for at := time.Duration(0); at <= length; at += step {
		mark := strconv.FormatFloat(at.Seconds(), 'f', -1, 64)
		if at == 0 {
			mark = "0 s"
		}
		from := min(int(at*time.Duration(width)/length), width-len(mark))
		if at > 0 && from <= end {
			continue
		}
		copy(row[from:], []rune(mark))
		end = from + len(mark)
	}
	return string(row)
}

// legend returns the lines that explain the glyphs.
func (t Text) legend(a *Act, indent int) []string {
	var lines []string
	line, width := strings.Repeat(" ", indent), indent
	for _, w := range a.Legend {
		l := looks[w.State]
		n := 2 + utf8.RuneCountInString(w.Text) + 3
		if width+n-3 > t.Width && width > indent {
			lines = append(lines, strings.TrimRight(line, " "))
			line, width = strings.Repeat(" ", indent), indent
		}
		line += t.paint([]cell{{l.glyph, w.State}}) + " " + w.Text + "   "
		width += n
	}
	return append(lines, strings.TrimRight(line, " "))
}

// verdict returns the lines of the verdict.
func (t Text) verdict(a *Act) []string {
	mark, color := a.Outcome.Mark(), "32"
	switch a.Outcome {
	case Violated:
		color = "31"
	case Incomplete:
		color = "33"
	}
	indent := 2 + len(mark) + 1
	if t.Color {
		mark = "\x1b[" + color + "m" + mark + "\x1b[0m"
	}
	lines := Wrap(a.Verdict, t.Width-indent)
	for i, l := range lines {
		if i == 0 {
			lines[i] = "  " + mark + " " + l
		} else {
			lines[i] = strings.Repeat(" ", indent) + l
		}
	}
	return lines
}

// Mark is the word in front of a verdict.
func (o Outcome) Mark() string {
	switch o {
	case Kept:
		return "ok:"
	case Violated:
		return "VIOLATED:"
	default:
		return "incomplete:"
	}
}

// Wrap breaks a text into lines of a width, at spaces.
func Wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		switch n := utf8.RuneCountInString(line); {
		case line == "":
			line = word
		case n+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}
