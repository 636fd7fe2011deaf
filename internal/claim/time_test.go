package claim

import (
	"testing"
	"time"
)

// TestWakeupCountsAtMost checks the bound of fences in messages: by the clock in the answer that the waiter waits, or by the last
// fence if that is ahead of the clock, and by the time since.
func TestWakeupCountsAtMost(t *testing.T) {
	const ttl, clock = 60_000, 1_700_000_000_000 // ms
	const asked = Instant(time.Hour)
	for _, x := range []struct {
		floor, fence int64
		after        time.Duration
		counts       bool
	}{
		{7, 7, 0, false},
		{7, 8, 0, true},
		{7, clock * 1000, 0, true},
		{7, (clock+1001)*1000 + 1, 0, false},
		{7, (clock+1001)*1000 + 1, time.Second, true},
		{7, (clock + 30_000) * 1000, 30 * time.Second, true},
		{7, (clock + 32_000) * 1000, 30 * time.Second, false},
		{(clock + 1e6) * 1000, (clock+1e6)*1000 + 1, 0, true}, // the clock was set back
		{(clock + 1e6) * 1000, (clock + 1e6 + 1001) * 1000, 0, false},
	} {
		if got := wakeupCounts(x.fence, x.floor, clock, asked, asked.Add(x.after), ttl); got != x.counts {
			t.Errorf("fence %d after %d, %v after the answer: %t", x.fence, x.floor, x.after, got)
		}
	}
}
