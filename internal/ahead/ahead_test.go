package ahead

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

func TestLength(t *testing.T) {
	for _, c := range []struct{ window, want time.Duration }{
		{MinWindow, 10 * time.Millisecond},
		{time.Second, 50 * time.Millisecond},
		{1001 * time.Millisecond, 51 * time.Millisecond},
		{20 * time.Second, time.Second},
		{time.Hour, time.Second},
	} {
		if got := Length(c.window); got != c.want {
			t.Errorf("Length(%v) = %v, want %v", c.window, got, c.want)
		}
	}
}

func TestBlockEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := time.Now()
		time.Sleep(time.Second)
		b := NewBlock(10, base, time.Second, 100*time.Millisecond)
		time.Sleep(99*time.Millisecond - 1)
		if left, at, ok := b.Take(3); !ok || left != 7 || at != 1099*time.Millisecond-1 {
			t.Errorf("before the end: %d left, %v, %t", left, at, ok)
		}
		time.Sleep(time.Nanosecond)
		if _, _, ok := b.Take(1); ok {
			t.Error("granted at the end")
		}
		if used := b.Close(); used != 3 {
			t.Errorf("%d were used, want 3", used)
		}
	})
}

func TestBlockClosesAsCallersLook(t *testing.T) {
	for _, c := range []struct{ granted, looking, want int64 }{{1, 1, 2}, {1, 4, 2}, {2, 1000, 2}, {0, 1, 1}, {0, 1000, 2}} {
		b := NewBlock(2, time.Now(), 0, time.Hour)
		if _, _, ok := b.Take(c.granted); !ok {
			t.Fatal("refused")
		}
		b.left.Add(-c.looking)
		used := b.Close()
		b.left.Add(c.looking)
		if used != c.want {
			t.Errorf("%d granted, %d about to be refused: Close says that %d were used, want %d", c.granted, c.looking, used, c.want)
		}
		if _, _, ok := b.Take(1); ok || b.Close() != 0 {
			t.Error("a closed block grants, or was used again")
		}
	}
}

func TestBlockGrantsNoMore(t *testing.T) {
	for range 100 {
		b := NewBlock(300, time.Now(), 0, time.Hour)
		var granted, used atomic.Int64
		var all sync.WaitGroup
		for n := range int64(4) {
			all.Go(func() {
				for range 60 {
					if _, _, ok := b.Take(n + 1); ok {
						granted.Add(n + 1)
					}
				}
			})
		}
		all.Go(func() { used.Store(b.Close()) })
		all.Wait()
		if granted.Load() > 300 || granted.Load() != used.Load() {
			t.Fatalf("%d were granted, and Close says %d", granted.Load(), used.Load())
		}
	}
}

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
		{"others are queued", 100, 1, 100, time.Hour, 1, 0},
		{"others are queued before one caller", 1, 1, 100, 0, 0, ahead / 8},
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
