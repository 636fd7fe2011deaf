package server

import (
	"math"
	"testing"
)

// TestDurationDoesNotOverflow checks that no number of milliseconds becomes a negative duration.
func TestDurationDoesNotOverflow(t *testing.T) {
	for ms, want := range map[int64]int64{0: 0, 1: 1e6, 30000: 30000e6, math.MaxInt64: math.MaxInt64, math.MaxInt64 / 1000: math.MaxInt64} {
		if got := Duration(ms); int64(got) != want {
			t.Errorf("%d ms is %d ns, want %d", ms, got, want)
		}
	}
}
