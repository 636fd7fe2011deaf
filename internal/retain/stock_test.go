package retain

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

// TestStockFollowsDemand checks that a process takes as many permits as its callers need in the time ahead, and none for a few callers.
func TestStockFollowsDemand(t *testing.T) {
	const ahead = 100 * time.Millisecond
	now := claim.Instant(time.Hour)
	for _, c := range []struct {
		name        string
		every       time.Duration
		least, most int64
	}{
		{"rarely", time.Second, 1, 1},
		{"once in the time ahead", ahead, 1, 1},
		{"ten times", ahead / 10, 9, 11},
		{"a thousand times", ahead / 1000, 950, 1050},
	} {
		s := NewStock(ahead)
		for range 5000 {
			now = now.Add(c.every)
			s.Used(now, 1)
		}
		if got := s.Next(now, 1, 1_000_000); got < c.least || got > c.most {
			t.Errorf("%s: %d, want %d to %d", c.name, got, c.least, c.most)
		}
		if got := s.Next(now.Add(10*ahead), 1, 1_000_000); got != 1 {
			t.Errorf("%s: %d after a pause", c.name, got)
		}
	}
	s := NewStock(ahead)
	s.Used(now, 1000)
	if got := s.Next(now, 1, 100); got != 25 {
		t.Errorf("%d of a limit of 100", got)
	}
	if got := s.Next(now, 40, 100); got != 40 {
		t.Errorf("%d for a caller who needs 40", got)
	}
}

func TestStockRefused(t *testing.T) {
	const ahead = 80 * time.Millisecond
	now := claim.Instant(time.Hour)
	for _, c := range []struct {
		name                  string
		size, need, remaining int64
		after                 time.Duration
		again                 int64
		d                     time.Duration
	}{
		{"half of what is left", 100, 1, 10, 0, 5, 0},
		{"the last one", 100, 1, 1, 0, 1, 0},
		{"what is needed", 100, 8, 10, 0, 8, 0},
		{"none", 100, 1, 0, time.Second, 1, 0},
		{"none for one caller", 1, 1, 0, 30 * time.Millisecond, 0, 30 * time.Millisecond},
		{"for long", 1, 1, 0, time.Hour, 0, ahead},
		{"for a moment", 1, 1, 0, time.Microsecond, 0, ahead / 8},
		{"others are queued", 100, 1, 100, 0, 0, ahead / 8},
	} {
		s := NewStock(ahead)
		s.Used(now, 1000)
		again, d := s.Refused(c.size, c.need, c.remaining, c.after)
		if again != c.again || d != c.d {
			t.Errorf("%s: %d again, for %v; want %d, %v", c.name, again, d, c.again, c.d)
		}
	}

	// After a refusal the process feels its way.
	s := NewStock(ahead)
	s.Used(now, 1000)
	s.Refused(100, 1, 20, 0)
	for _, want := range []int64{10, 20, 40, 80, 160, 250, 250} {
		size := s.Next(now, 1, 1000)
		if size != want {
			t.Fatalf("%d, want %d", size, want)
		}
		s.Granted(size)
	}
}
