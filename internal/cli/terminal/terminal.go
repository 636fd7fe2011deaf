// Package terminal asks a terminal for its size and reads single keys from it.
package terminal

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// The size that is assumed if the terminal does not tell it.
const (
	defaultWidth  = 80
	defaultHeight = 24
)

// Is reports whether f is a terminal that understands escape sequences.
func Is(f *os.File) bool { return os.Getenv("TERM") != "dumb" && isTerminal(f) }

// Size returns the number of columns and lines of a terminal.
func Size(f *os.File) (width, height int) {
	width, height, ok := size(f)
	if !ok || width < 1 || height < 1 {
		return defaultWidth, defaultHeight
	}
	return width, height
}

// progressAfter is how long a command runs before it shows its progress.
const progressAfter = time.Second

// Progress shows the progress of a command that takes long, on the last line of a terminal. Nil shows nothing. It may be used
// concurrently.
type Progress struct {
	w     io.Writer
	width int
	timer *time.Timer // ends the time in which nothing is shown

	mu    sync.Mutex // guards the rest
	text  string     // what is to be shown
	due   bool       // progressAfter has passed
	shown bool
}

// NewProgress returns a Progress that writes to f, or nil if that is not a terminal.
func NewProgress(f *os.File) *Progress {
	if !Is(f) {
		return nil
	}
	width, _ := Size(f)
	return newProgress(f, width)
}

func newProgress(w io.Writer, width int) *Progress {
	p := &Progress{w: w, width: width}
	p.timer = time.AfterFunc(progressAfter, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.due = true
		p.write()
	})
	return p
}

// Show replaces the line, once the command has run for a second.
func (p *Progress) Show(format string, args ...any) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = fmt.Sprintf(format, args...)
	p.write()
}

// write shows the text, if it is due. The mutex is locked.
func (p *Progress) write() {
	if p.due && p.text != "" {
		text := []rune(p.text)
		fmt.Fprintf(p.w, "\r%s\x1b[K", string(text[:min(len(text), p.width-1)]))
		p.shown = true
	}
}

// Clear removes the line until the next Show. It must be called before anything else is written to the terminal.
func (p *Progress) Clear() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = ""
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

// End removes the line for good.
func (p *Progress) End() {
	if p == nil {
		return
	}
	p.timer.Stop()
	p.Clear()
}
