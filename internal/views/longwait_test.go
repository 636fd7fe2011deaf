package views

import (
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/growth"
)

// logWaits notes so many lines about locks that others precede, and returns how long that took.
func logWaits(lines, others int) time.Duration {
	var ws LongWaits
	now := time.Now()
	for i := range others {
		ws.mayLogLocked(fmt.Sprint(i), now, time.Minute)
	}
	keys := make([]string, lines)
	for i := range keys {
		keys[i] = fmt.Sprint("x", i)
	}
	return growth.Took(func() {
		for _, key := range keys {
			ws.mayLogLocked(key, now, time.Minute)
		}
	})
}

// TestLongWaitIsCheapAmongMany checks that a wait that has become long does not look at the others.
func TestLongWaitIsCheapAmongMany(t *testing.T) {
	growth.AtMost(t, 20, func() time.Duration { return logWaits(500, 10) }, func() time.Duration { return logWaits(500, 20_000) })
}

// TestLongWaitsOfALockAreLoggedOncePerInterval checks that the time of the last line about each lock counts, and is forgotten.
func TestLongWaitsOfALockAreLoggedOncePerInterval(t *testing.T) {
	var ws LongWaits
	began := time.Now()
	for _, c := range []struct {
		key  string
		at   time.Duration
		want bool
	}{
		{"a", 0, true}, {"b", 30 * time.Second, true}, {"a", 59 * time.Second, false}, {"a", 60 * time.Second, true},
		{"b", 89 * time.Second, false}, {"b", 90 * time.Second, true}, {"a", 119 * time.Second, false},
	} {
		if got := ws.mayLogLocked(c.key, began.Add(c.at), time.Minute); got != c.want {
			t.Errorf("%s after %v: %v", c.key, c.at, got)
		}
	}
	if !ws.mayLogLocked("c", began.Add(time.Hour), time.Minute) || len(ws.last) != 1 || len(ws.inTime) != 1 {
		t.Errorf("%d and %d are remembered, want 1", len(ws.last), len(ws.inTime))
	}
}
