package demo

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// screen prints events, and on a terminal the current state below them.
type screen struct {
	out   io.Writer
	tty   bool
	start time.Time
	drawn int // number of lines of the drawing, which the next output overwrites
}

// printf prints a line with the time since the start, above the drawing.
func (s *screen) printf(format string, args ...any) {
	s.erase()
	fmt.Fprintf(s.out, "%6.3fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

// draw replaces the drawing by the current state.
func (s *screen) draw(p scenario) {
	if !s.tty {
		return
	}
	text := p.stateText()
	s.erase()
	s.drawn = strings.Count(text, "\n")
	fmt.Fprint(s.out, text)
}

func (s *screen) erase() {
	if s.drawn > 0 {
		fmt.Fprintf(s.out, "\x1b[%dA\x1b[J", s.drawn)
		s.drawn = 0
	}
}

// marks are the colored labels of the states of workers.
var marks = map[string]string{
	stateHolding: "\x1b[32m● holds  \x1b[0m",
	"reading":    "\x1b[32m● reads  \x1b[0m",
	"calling":    "\x1b[32m● calls  \x1b[0m",
	"writing":    "\x1b[33m◆ writes \x1b[0m",
	stateWaiting: "○ waits  ",
	stateKilled:  "\x1b[31m✗ killed \x1b[0m",
	stateFrozen:  "\x1b[36m✻ frozen \x1b[0m",
}

// writeLine writes the state of a worker. Holding is the label of a worker that holds the lock.
func (w *worker) writeLine(b *strings.Builder, holding string) {
	state := w.state
	if state == stateHolding {
		state = holding
	}
	mark := marks[state]
	if mark == "" {
		mark = fmt.Sprintf("  %-7s", state)
	}
	fmt.Fprintf(b, "  %-8s  %s %6.2fs  %3d leases  last fence %d\n", w.id, mark, time.Since(w.since).Seconds(), w.leases, w.fence)
}
