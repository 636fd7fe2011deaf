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

func TestHoldCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := open()
		if !enters(h) || !h.Close() || h.Close() || enters(h) || h.Inside() != 2 {
			t.Error("a closed hold has admitted one, or forgotten one")
		}
		if ok, settle := h.Enter(); ok || !settle {
			t.Error("a caller who was turned away may have hidden that the others have left")
		}
		for range 2 {
			if !h.Leave() {
				t.Error("one that leaves a closed hold was not told so")
			}
		}
		if n := h.Inside(); n != 0 {
			t.Errorf("%d are inside after all have left", n)
		}

		h, _ = open()
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
