package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
)

// display shows the acts.
type display interface {
	begin(number int, a *timeline.Act)
	note(at time.Duration, text string)
	draw(a *timeline.Act, now time.Duration)
	end(a *timeline.Act)
	close()
}

// plainDisplay prints a few lines for each act.
type plainDisplay struct{ out io.Writer }

func (d *plainDisplay) begin(number int, a *timeline.Act) {
	fmt.Fprintf(d.out, "%d. %s\n", number, a.Caption)
}

func (d *plainDisplay) note(at time.Duration, text string) {
	fmt.Fprintf(d.out, "   %5.2f s  %s\n", at.Seconds(), text)
}

func (*plainDisplay) draw(*timeline.Act, time.Duration) {}

func (d *plainDisplay) end(a *timeline.Act) {
	if a.Outcome != timeline.Pending {
		fmt.Fprintf(d.out, "   %s %s\n", a.Outcome.Mark(), a.Verdict)
	}
}

func (*plainDisplay) close() {}

// terminalDisplay draws each act in place. The drawing stays when the act is over, and the next one is drawn below.
type terminalDisplay struct {
	out    io.Writer
	size   func() (columns, rows int)
	color  bool
	number int
	drawn  int // lines of the drawing, above the cursor
}

func newTerminalDisplay(f *os.File) *terminalDisplay {
	d := &terminalDisplay{out: f, size: func() (int, int) { return terminalSize(f) }, color: os.Getenv("NO_COLOR") == ""}
	fmt.Fprint(d.out, "\x1b[?25l") // hide the cursor
	return d
}

func (d *terminalDisplay) begin(number int, a *timeline.Act) {
	d.number, d.drawn = number, 0
	d.draw(a, 0)
}

func (*terminalDisplay) note(time.Duration, string) {}

func (d *terminalDisplay) draw(a *timeline.Act, now time.Duration) {
	columns, rows := d.size()
	// The last column stays empty, because terminals differ in what follows a character there.
	numbered := *a
	numbered.Caption = fmt.Sprintf("%d. %s", d.number, a.Caption)
	lines := timeline.Text{Width: columns - 1, Color: d.color}.Frame(&numbered, now)
	if columns <= timeline.MinWidth || len(lines) >= rows {
		if a.Outcome == timeline.Pending {
			return // there is no room to draw in place; the last state is printed
		}
	}
	var b strings.Builder
	if d.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", d.drawn)
	}
	for _, l := range lines {
		b.WriteString(l + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	d.drawn = len(lines)
	_, _ = io.WriteString(d.out, b.String())
}

func (d *terminalDisplay) end(a *timeline.Act) {
	d.draw(a, a.End)
	fmt.Fprintln(d.out)
}

func (d *terminalDisplay) close() { fmt.Fprint(d.out, "\x1b[?25h") }

// isTerminal reports whether a drawing can be shown on f.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb" && f.Name() != os.DevNull
}
