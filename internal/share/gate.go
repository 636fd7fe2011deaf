package share

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Gate counts who is inside a shared lease, and says whether another caller may enter. It is closed at first. Enter, Leave and Close are atomic
// steps on one word, so nobody enters a closed Gate, and exactly one call reports that the Gate is closed and nobody is inside: the last
// Leave, or Close. Its caller releases the lease. All methods are safe for concurrent use.
type Gate struct {
	word  atomic.Uint64 // see open, entered and inside
	base  time.Time
	until time.Duration // callers may enter until then, since base
	alone bool          // one caller at a time
}

// The parts of the word, from the top: whether the Gate is open, how many have entered (modulo 2^31: Linger is 10 s at most), and how many
// are inside.
const (
	open    uint64 = 1 << 63
	entered uint64 = 1 << 32
	inside         = entered - 1
)

// yieldEvery is after how many entries a caller lets other goroutines run. Callers who enter and leave in a loop never block, and would keep
// the processors for 10 ms each, while others, and the timer that ends Linger, have to wait.
const yieldEvery = 128

// Admit counts the caller to whom the server has granted the lease as inside. If shares is set, it opens the Gate, until a time measured from
// base by the monotonic clock. If alone is set, one caller at a time may be inside.
func (g *Gate) Admit(base time.Time, until time.Duration, alone, shares bool) {
	g.base, g.until, g.alone = base, until, alone
	w := entered + 1
	if shares {
		w += open
	}
	g.word.Store(w)
}

// InTime reports whether callers may still enter, by the clock. While they may, the lease has not reached its deadline.
func (g *Gate) InTime() bool { return time.Since(g.base) < g.until }

// IsOpen reports whether the Gate is open. It does not look at the clock.
func (g *Gate) IsOpen() bool { return g.word.Load()&open != 0 }

// Enter counts a caller as inside. It reports false if the Gate is closed, its time is over, or alone is set and somebody is inside.
func (g *Gate) Enter() bool {
	for g.InTime() {
		w := g.word.Load()
		if w&open == 0 || g.alone && w&inside > 0 {
			return false
		}
		if next := w + entered + 1; g.word.CompareAndSwap(w, next) {
			if next/entered%yieldEvery == 0 {
				runtime.Gosched()
			}
			return true
		}
	}
	return false
}

// Leave counts a caller as outside. It reports whether the Gate is closed and nobody is inside any more.
func (g *Gate) Leave() (last bool) { return g.word.Add(^uint64(0))&(open|inside) == 0 }

// Close closes the Gate. It reports whether it was open, and whether nobody was inside then.
func (g *Gate) Close() (was, empty bool) {
	w := g.word.And(^open)
	return w&open != 0, w&open != 0 && w&inside == 0
}

// OneLeft reports whether the Gate is closed and one caller is inside.
func (g *Gate) OneLeft() bool { return g.word.Load()&(open|inside) == 1 }
