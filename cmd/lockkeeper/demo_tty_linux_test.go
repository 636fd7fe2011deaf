package main

import (
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"golang.org/x/sys/unix"
)

func TestInterruptedDemoOnATerminal(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		x := newTerminal(t)
		must.OK(t, unix.IoctlSetWinsize(int(x.screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 80}))
		// The processes of the demo inherit its standard error, which is at its end when all of them have ended.
		errs, stderr, err := os.Pipe()
		must.OK(t, err)
		c := command(t, "demo")
		c.Env = append(c.Env, "TERM=xterm", "NO_COLOR=1")
		c.Stdout, c.Stderr = x.screen, stderr
		x.runs(c)
		_, _ = x.screen.Close(), stderr.Close() // so that reading ends when the demo does
		text, b, frozen := "", make([]byte, 4096), false
		for n := 0; err == nil; n, err = x.keys.Read(b) { // it ends with EIO
			if text += string(b[:n]); !frozen && strings.Contains(text, "is frozen in the queue") {
				frozen = true
				c.signals(s)
			}
		}
		c.waits(130)
		_ = errs.SetReadDeadline(time.Now().Add(10 * time.Second))
		if text, err := io.ReadAll(errs); err != nil || len(text) > 0 {
			t.Errorf("%v: the standard error has %q, and its end: %v", s, text, err)
		}
		if n := len(regexp.MustCompile(`\x1b\[\d+A`).FindAllString(text, -1)); n < 10 || strings.Contains(text, "\x1b[0;") {
			t.Errorf("%d frames were drawn over, or there are colors in spite of NO_COLOR:\n%q", n, text)
		}
	}
}
