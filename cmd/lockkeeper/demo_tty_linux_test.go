package main

import (
	"io"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

func TestDemoDrawsInPlaceOnATerminal(t *testing.T) {
	t.Parallel()
	const columns = 80
	x := newTerminal(t)
	if err := unix.IoctlSetWinsize(int(x.screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: columns}); err != nil {
		t.Fatal(err)
	}
	c := command(t, "demo")
	c.Env = append(c.Env, "TERM=xterm", "NO_COLOR=1")
	c.Stdout = x.screen
	x.runs(c)
	_ = x.screen.Close() // so that reading ends when the demo does
	drawn := make(chan string)
	go func() {
		all, _ := io.ReadAll(x.keys) // ends with EIO
		drawn <- string(all)
	}()
	text := <-drawn
	c.waits(0)
	if n := len(regexp.MustCompile(`\x1b\[\d+A`).FindAllString(text, -1)); n < 20 {
		t.Errorf("%d frames were drawn over", n)
	}
	if strings.Contains(text, "\x1b[3") {
		t.Error("colors in spite of NO_COLOR")
	}
	if !strings.HasPrefix(text, "\x1b[?25l") || !strings.HasSuffix(text, "\x1b[?25h") {
		t.Error("the cursor is not hidden at first and shown at last")
	}
	last := text[strings.LastIndex(text, "4. Rate limit"):]
	for _, s := range []string{"c1 ", "calls", "0 s", "x killed", "ok: at most 8 calls in any"} {
		if !strings.Contains(last, s) {
			t.Errorf("the last frame has no %q:\n%s", s, last)
		}
	}
	for line := range strings.Lines(regexp.MustCompile(`\x1b\[[?\d]*[A-Za-z]`).ReplaceAllString(text, "")) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\r\n")); n >= columns {
			t.Errorf("a line of %d characters: %s", n, line)
		}
	}
}
