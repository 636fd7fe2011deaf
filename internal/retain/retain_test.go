package retain

import (
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

// open returns an open hold with one caller inside, whose lease is certain for a second, and the epoch of the subscription.
func open() (*Hold, *atomic.Uint64) {
	var epoch atomic.Uint64
	epoch.Store(1)
	h := New(time.Now(), &epoch)
	h.SetDeadline(time.Now().Add(time.Second))
	h.Open(false)
	return h, &epoch
}

func enters(h *Hold) bool {
	ok, _ := h.Enter()
	return ok
}

func TestHoldAdmitsUntilItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := open()
		time.Sleep(time.Second - 1)
		if !enters(h) || !h.Certain() {
			t.Error("not admitted before the deadline")
		}
		time.Sleep(time.Nanosecond)
		if enters(h) || h.Certain() {
			t.Error("admitted at the deadline")
		}
		if n := h.Inside(); n != 2 {
			t.Errorf("%d inside, want 2", n)
		}
		h.SetDeadline(time.Now().Add(time.Second))
		if !enters(h) {
			t.Error("not admitted after a renewal")
		}
		h.SetDeadline(time.Now().Add(time.Millisecond)) // an Extend to less
		time.Sleep(time.Millisecond)
		if enters(h) || h.Certain() {
			t.Error("admitted after a deadline that was set back")
		}
	})
}

func TestHoldEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := open()
		h.End()
		if enters(h) || h.Certain() || h.Close() {
			t.Error("an ended lease admits")
		}
	})
}

// TestHoldUses checks that counting uses does not disturb the rest of the word.
func TestHoldUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, epoch := open()
		for range 5 {
			enters(h)
		}
		if n := h.TakeUses(); n != 6 {
			t.Errorf("%d uses, want 6", n)
		}
		if n := h.TakeUses(); n != 0 {
			t.Errorf("%d uses, want 0", n)
		}
		epoch.Add(1)
		for range 3 {
			enters(h)
		}
		for range 6 {
			if h.Leave() {
				t.Error("it is open")
			}
		}
		if h.TakeUses(); h.Inside() != 0 || !h.Certain() || !h.Close() {
			t.Errorf("the word is %b", h.word.Load())
		}
	})
}

// TestHoldNobodyInsideAfterTheLast lets callers enter and leave while the hold is closed. Whoever sees that none is inside may
// give the lease back, so none may be inside then or later.
func TestHoldNobodyInsideAfterTheLast(t *testing.T) {
	for range 200 {
		h, _ := open()
		var believing atomic.Int64
		var given atomic.Bool
		settle := func() {
			if h.Inside() == 0 {
				given.Store(true)
				if n := believing.Load(); n != 0 {
					t.Errorf("the lease is given back with %d inside", n)
				}
			}
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 100 {
					ok, closed := h.Enter()
					if ok {
						believing.Add(1)
						if given.Load() {
							t.Error("entered after the lease was given back")
						}
						believing.Add(-1)
						closed = h.Leave()
					}
					if closed {
						settle()
					}
					h.TakeUses()
				}
			})
		}
		wg.Go(func() {
			h.Close()
			if h.Leave() {
				settle()
			}
		})
		wg.Wait()
		if !given.Load() || h.Inside() != 0 {
			t.Fatal("the lease was not given back")
		}
	}
}

func TestPolicy(t *testing.T) {
	const ms = time.Millisecond
	var p Policy
	if !p.Allows(0) {
		t.Error("a name that was never used is not retained at once")
	}
	p = p.Read(0, 10).Recalled(10*ms, 2*ms, 0) // inhibited for at least 20 ms
	p = p.Read(11*ms, 100)
	if p.Allows(29*ms) || !p.Allows(31*ms) {
		t.Error("not inhibited for 20 ms")
	}
	p = p.Recalled(100*ms, 20*ms, 0.5) // 180 ms
	if p.Read(101*ms, 1000).Allows(279*ms) || !p.Read(101*ms, 1000).Allows(281*ms) {
		t.Error("not inhibited for nine times the time that the recall took")
	}
	p = p.Recalled(time.Second, time.Hour, math.Nextafter(1, 0))
	if p.Read(2*time.Second, 1e6).Allows(60*time.Second) || !p.Read(2*time.Second, 1e6).Allows(62*time.Second) {
		t.Error("not inhibited for a minute at most")
	}

	p = Policy{}.Recalled(0, ms, 0.5)
	if p.Read(time.Second, 15).Allows(time.Second) || !p.Read(time.Second, 20).Allows(time.Second) {
		t.Error("retained after other than 20 reads per recall")
	}
	if p.Allows(30*time.Second) || !p.Allows(40*time.Second) {
		t.Error("a recall is not forgotten in time")
	}

	for range 1000 { // the inhibition is spread, and bounded
		took, chance := time.Duration(math.Pow(float64(time.Hour), rand.Float64())), rand.Float64()
		p := Policy{}.Recalled(0, took, chance).Read(0, 1e9)
		if p.Allows(20*ms-1) || !p.Allows(time.Minute) {
			t.Fatalf("after %v, chance %v", took, chance)
		}
	}
	for _, took := range []time.Duration{0, 20 * ms, time.Hour} { // also at the bounds
		if least, most := (Policy{}).Recalled(0, took, 0).inhibited, (Policy{}).Recalled(0, took, 1).inhibited; most < least*3/2 {
			t.Errorf("after %v the processes are inhibited for %v to %v", took, least, most)
		}
	}
}

func TestNames(t *testing.T) {
	n := NewNames[int](3)
	for i := range 3 {
		if _, some := n.Add(strconv.Itoa(i), i); some {
			t.Error("a name was removed too early")
		}
	}
	if v, ok := n.Get("0"); v != 0 || !ok {
		t.Error("0 is not there")
	}
	if v, some := n.Add("3", 3); v != 1 || !some {
		t.Errorf("%d was removed, %v; want 1, which was used least recently", v, some)
	}
	if _, ok := n.Get("1"); ok {
		t.Error("1 is still there")
	}
}

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
