package main

import (
	"strings"
	"testing"
	"time"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	c := command(t, "demo")
	start := time.Now()
	c.ends(0)
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("the demo took %v", d)
	}
	for _, s := range []string{"acquisitions: ", "overlapping holders:    0", "out of order:           0",
		"fences increasing:      yes", "killed while holding:", "killed while first:", "frozen while first:",
		"reads: ", "writes: ", "reads during a write:   0", "longest wait to write:", "longest read:",
		"calls: ", "at once:                at most 4, allowed 4", "in any second:", "delays of calls:", "killed during a call:"} {
		if !strings.Contains(c.out.String(), s) {
			t.Errorf("the summary has no %q:\n%s", s, c.out.String())
		}
	}
}
