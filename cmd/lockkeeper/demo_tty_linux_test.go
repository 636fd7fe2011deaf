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
)

func TestInterruptedDemoOnATerminal(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		x := newTerminal(t, 80, 40)
		// The processes of the demo inherit its standard error, which is at its end when all of them have ended.
		errs, stderr, err := os.Pipe()
		must.OK(t, err)
		c := command(t, "demo")
		c.Env = append(c.Env, "TERM=xterm", "NO_COLOR=1")
		c.Stdout, c.Stderr = x.screen, stderr
		x.runs(c)
		_ = stderr.Close()
		x.shows("is frozen in the queue")
		c.signals(s)
		c.waits(130)
		_ = errs.SetReadDeadline(time.Now().Add(10 * time.Second))
		if text, err := io.ReadAll(errs); err != nil || len(text) > 0 {
			t.Errorf("%v: the standard error has %q, and its end: %v", s, text, err)
		}
		text := x.written.String()
		if n := len(regexp.MustCompile(`\x1b\[\d+A`).FindAllString(text, -1)); n < 10 || strings.Contains(text, "\x1b[0;") {
			t.Errorf("%d frames were drawn over, or there are colors in spite of NO_COLOR:\n%q", n, text)
		}
	}
}
