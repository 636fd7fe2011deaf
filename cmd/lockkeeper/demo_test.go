package main

import (
	"strings"
	"testing"
	"time"
)

func TestDemo(t *testing.T) {
	c := command(t, "demo")
	start := time.Now()
	c.ends(0)
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("the demo took %v", d)
	}
	for _, s := range []string{"acquisitions: ", "overlaps seen:          0", "served out of turn:     0",
		"fences strictly rising: yes", "killed while holding:", "killed while first:", "frozen while first:",
		"reads: ", "writes: ", "reads beside a write:   0", "fences in order:        yes", "longest wait to write:", "longest read:",
		"calls seen by the API:", "at once:                4 at most, 4 allowed", "in any second:", "on the way to it:", "killed in a call:"} {
		if !strings.Contains(c.out.String(), s) {
			t.Errorf("the summary has no %q:\n%s", s, c.out.String())
		}
	}
}
