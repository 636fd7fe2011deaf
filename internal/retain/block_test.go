package retain

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestAhead(t *testing.T) {
	for _, c := range []struct{ window, want time.Duration }{
		{MinWindow, 10 * time.Millisecond},
		{time.Second, 50 * time.Millisecond},
		{1001 * time.Millisecond, 51 * time.Millisecond},
		{20 * time.Second, time.Second},
		{time.Hour, time.Second},
	} {
		if got := Ahead(c.window); got != c.want {
			t.Errorf("Ahead(%v) = %v, want %v", c.window, got, c.want)
		}
	}
}

// TestBlockEnds checks that nothing is granted from a block once its time is over, by a process that was frozen until then.
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

func TestBlockCloses(t *testing.T) {
	b := NewBlock(5, time.Now(), 0, time.Hour)
	if _, _, ok := b.Take(6); ok {
		t.Error("granted more than the block")
	}
	if left, _, ok := b.Take(5); !ok || left != 0 {
		t.Errorf("%d left, %t", left, ok)
	}
	if used := b.Close(); used != 5 {
		t.Errorf("%d were used", used)
	}
	if _, _, ok := b.Take(1); ok || b.Close() != 0 {
		t.Error("a closed block grants, or was used again")
	}
}

// TestBlockClosesAsCallersLook closes a block while more callers are about to find too few permits than it has: their subtractions, which
// they are about to undo, are not permits that were granted, and those that were are not forgotten.
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

// TestBlockGrantsNoMore lets many take and one close: what was granted is what Close says, and never more than there was.
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
