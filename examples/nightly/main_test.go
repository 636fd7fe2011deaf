//go:build unix

package main

import (
	"io"
	"regexp"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/example"
)

// The hosts are this very binary.
func TestMain(m *testing.M) { example.Main(m, main, "host") }

func TestReportIsMadeOnceAlthoughHostCrashes(t *testing.T) {
	out := example.Output(t, func(out io.Writer) error { return demo(t.Context(), out) })
	count := func(pattern string) int {
		return len(regexp.MustCompile("(?m)^host-.: +"+pattern+"$").FindAllString(out, -1))
	}
	if n := count("writes page 1 of 10"); n < 2 {
		t.Errorf("the report was started %d times, although a host was killed", n)
	}
	if n := count("made the report"); n != 1 {
		t.Errorf("the report was made %d times", n)
	}
	if n := count("-- killed --"); n != 1 {
		t.Errorf("%d hosts were killed", n)
	}
}
