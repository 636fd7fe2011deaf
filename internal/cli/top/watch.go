package top

import (
	"context"
	"os"
	"strings"
	"time"

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
	type outcome struct {
		view *view
		err  error
	}
	outcomes := make(chan outcome)
	ended := make(chan struct{})
	defer func() { <-ended }() // after cancel
	defer cancel()
	go func() {
		defer close(ended)
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
	}()
	quit := make(chan struct{})
	if restore, err := terminal.SingleKeys(os.Stdin); err == nil {
		defer restore()
		go readKeys(quit)
	}
	resized, stop := terminal.Resized()
	defer stop()
	if _, err := out.WriteString(enterScreen); err != nil {
		return err
	}
	defer func() { _, _ = out.WriteString(leaveScreen) }()
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
		case <-quit:
			return nil
		case <-ctx.Done():
			return ctx.Err()
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
