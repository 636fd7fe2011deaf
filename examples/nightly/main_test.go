//go:build unix

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The hosts are this very binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "host" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestReportIsMadeOnceAlthoughHostCrashes(t *testing.T) {
	var out strings.Builder
	if err := demo(t.Context(), &out); err != nil {
		t.Errorf("%v, after\n%s", err, out.String())
	}
	t.Log("\n" + out.String())
	count := func(pattern string) int {
		return len(regexp.MustCompile("(?m)^host-.: +"+pattern+"$").FindAllString(out.String(), -1))
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
