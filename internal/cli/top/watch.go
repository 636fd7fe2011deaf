package top

import (
	"context"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/lockkeeper/lockkeeper/internal/cli/terminal"
)

// Escape sequences: the alternate screen without a cursor, and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
)

// watch redraws the view on the terminal after each look, until ctx ends or the key q. The first look must succeed.
func watch(ctx context.Context, l *looker, title string, interval time.Duration, out *os.File) error {
	v, err := l.look(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outcomes := make(chan outcome)
	var looking sync.WaitGroup
	defer looking.Wait() // after cancel
	defer cancel()
	looking.Go(func() { l.looks(ctx, interval, outcomes) })
	var restore func() // nil: standard input is not a terminal
	enter := func() (err error) {
		restore, _ = terminal.SingleKeys(os.Stdin)
		_, err = out.WriteString(enterScreen)
		return err
	}
	leave := func() {
		_, _ = out.WriteString(leaveScreen)
		if restore != nil {
			restore()
		}
	}
	stops, end := process.StopRequests()
	defer end()
	resized, stop := terminal.Resized()
	defer stop()
	defer leave()
	if err := enter(); err != nil {
		return err
	}
	quit := make(chan struct{})
	if restore != nil {
		go readKeys(quit)
	}
	var failed error
	for {
		width, height := terminal.Size(out)
		if err := draw(out, v.frame(title, failed, width, height)); err != nil {
			return err
		}
		select {
		case o := <-outcomes:
			failed = o.err
			if o.err == nil {
				v = o.view
			}
		case <-resized:
		case <-stops:
			if err := process.Stop(leave, enter); err != nil {
				return err
			}
		case <-quit:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// outcome is that of one look.
type outcome struct {
	view *view
	err  error
}

// looks looks again after each interval, until ctx ends.
func (l *looker) looks(ctx context.Context, interval time.Duration, outcomes chan<- outcome) {
	for {
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return
		}
		v, err := l.look(ctx)
		select {
		case outcomes <- outcome{v, err}:
		case <-ctx.Done():
			return
		}
	}
}

// readKeys closes quit at the key q. It ends with the process, because nothing interrupts a read from a terminal.
func readKeys(quit chan<- struct{}) {
	key := make([]byte, 1)
	for {
		n, err := os.Stdin.Read(key)
		if err != nil || n == 1 && (key[0] == 'q' || key[0] == 'Q') {
			if err == nil {
				close(quit)
			}
			return
		}
	}
}

// draw writes the lines over what was drawn before.
func draw(out *os.File, lines []string) error {
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	_, err := out.WriteString(b.String())
	return err
}
