//go:build unix

package main

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/example"
)

// The candidates are this very binary.
func TestMain(m *testing.M) { example.Main(m, main, "candidate", "watch") }

func TestOthersTakeOver(t *testing.T) {
	out := example.Output(t, demo)

	// The fences of the leaders rise, in the order in which the one who watches saw them.
	var last, terms uint64
	for _, m := range regexp.MustCompile(`(?m)^watch: +[abc] leads, fence (\d+)$`).FindAllStringSubmatch(out, -1) {
		fence, err := strconv.ParseUint(m[1], 10, 64)
		if err != nil || fence <= last {
			t.Errorf("fence %s after %d", m[1], last)
		}
		last = fence
		terms++
	}
	if terms < 2 { // a term that is shorter than the interval of Watch may be missed
		t.Errorf("%d terms were seen", terms)
	}
	// The one that was frozen steps down because its lease was lost, and the one that was told to end because of that.
	if !regexp.MustCompile(`(?s)([abc]): +-- continues --.*\n[abc]: +steps down: [^\n]*lost`).MatchString(out) {
		t.Error("the frozen leader did not report its loss")
	}
	if !regexp.MustCompile(`(?s)([abc]): +-- SIGTERM --.*\n[abc]: +steps down: [^\n]*(terminated|canceled)`).MatchString(out) {
		t.Error("the last leader did not step down")
	}
}
