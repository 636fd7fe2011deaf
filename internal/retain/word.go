package retain

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

// word is what a Hold has in one atomic word: from the top, whether the hold is open, whether its lease has ended, whether a caller waits
// for the one inside to leave, how many callers have come since TakeUses, and how many are inside. 37 bits of uses last for minutes at a
// thousand million a second. Each method is one step of a Hold, and returns the next word.
type word uint64

const (
	opened word = 1 << 63
	ended  word = 1 << 62
	wanted word = 1 << 61
	use    word = 1 << 24
	uses        = wanted - use
	inside      = use - 1

	// maxInside bounds the callers inside, so that a count never reaches the bits of another.
	maxInside = inside / 2
)

// open counts the first caller as inside, and others may come unless closed is set or the lease has ended.
func (w word) open(closed bool) word {
	if closed || w&ended != 0 {
		return w + use + 1
	}
	return w + opened + use + 1
}

// enter counts a caller as inside, who may have to leave at once; see mayStay.
func (w word) enter() word { return w + use + 1 }

// yieldEvery is after how many uses a caller lets other goroutines run. Callers who enter and leave in a loop never block, and would keep
// the processors for 10 ms each: as long as that, times the callers per processor, a recall would wait for the goroutine that handles
// it.
const yieldEvery = 128

// mayYield reports whether the caller that was counted by enter is to do so.
func (w word) mayYield() bool { return w&(yieldEvery*use-1) < use }

// mayStay reports whether a caller that was counted by enter may be inside.
func (w word) mayStay() bool { return w&opened != 0 && w&inside < maxInside }

// leave counts a caller as outside.
func (w word) leave() word { return w - 1 }

// enterAlone counts a caller as inside if nobody else is.
func (w word) enterAlone() (word, Entry) {
	switch {
	case w&opened == 0:
		return w, Closed
	case w&inside != 0:
		return w, Busy
	}
	return w.enter(), Entered
}

// want notes that a caller waits for the one inside. It reports false if there is none, or the hold is closed.
func (w word) want() (next word, ok bool) {
	if w&opened == 0 || w&inside == 0 {
		return w, false
	}
	return w | wanted, true
}

// unwant notes that none waits.
func (w word) unwant() word { return w &^ wanted }

// leaveAlone counts the caller as outside, unless another one waits in an open hold.
func (w word) leaveAlone() (next word, left bool) {
	if w&opened != 0 && w&wanted != 0 {
		return w, false
	}
	return w.leave(), true
}

// pass makes the one that waits the one inside, if the hold is open.
func (w word) pass() (next word, passed bool) {
	next = w.unwant()
	if w&opened == 0 {
		return next, false
	}
	return next + use, true
}

func (w word) close() word { return w &^ opened }

func (w word) end() word { return w&^opened | ended }

// HoldValue is what a Hold has, as a value without pointers: the search in internal/testing/explore copies and compares it. It knows
// whether somebody has come since TakeUses, not how many.
type HoldValue struct {
	word     word
	epoch    uint64
	deadline claim.Instant
}

// NewValue returns a HoldValue as New returns a Hold.
func NewValue(current uint64) HoldValue { return HoldValue{epoch: current} }

// SetDeadline sets until when the lease is certain.
func (v *HoldValue) SetDeadline(deadline claim.Instant) { v.deadline = deadline }

// At returns a view of v that does what a Hold does, at a time and in an epoch of the subscription.
func (v *HoldValue) At(now claim.Instant, current uint64) HoldAt { return HoldAt{v, now, current} }

// HoldAt has the methods of a Hold.
type HoldAt struct {
	v       *HoldValue
	now     claim.Instant
	current uint64
}

// set sets the word, in which one use stands for any number.
func (h HoldAt) set(w word) {
	if w&uses > use {
		w = w&^uses | use
	}
	h.v.word = w
}

func (h HoldAt) admits() bool {
	return Hears(h.v.epoch, h.current) && InTime(time.Duration(h.now), time.Duration(h.v.deadline))
}

// Confirm is that of Hold.
func (h HoldAt) Confirm(epoch uint64) { h.v.epoch = epoch }

// Current is that of Hold.
func (h HoldAt) Current() uint64 { return h.current }

// Open is that of Hold.
func (h HoldAt) Open(closed bool) { h.set(h.v.word.open(closed)) }

// Enter is that of Hold.
func (h HoldAt) Enter() (ok, settle bool) {
	h.set(h.v.word.enter())
	if h.v.word.mayStay() && h.admits() {
		return true, false
	}
	return false, h.Leave()
}

// Leave is that of Hold.
func (h HoldAt) Leave() (settle bool) {
	h.set(h.v.word.leave())
	return h.v.word&opened == 0
}

// EnterAlone is that of Hold.
func (h HoldAt) EnterAlone() Entry {
	next, entry := h.v.word.enterAlone()
	if entry != Entered {
		return entry
	}
	h.set(next)
	if !h.admits() {
		h.set(h.v.word.leave())
		return Closed
	}
	return Entered
}

// Want is that of Hold.
func (h HoldAt) Want() bool {
	next, ok := h.v.word.want()
	h.set(next)
	return ok
}

// Unwant is that of Hold.
func (h HoldAt) Unwant() { h.set(h.v.word.unwant()) }

// LeaveAlone is that of Hold.
func (h HoldAt) LeaveAlone() (left, settle bool) {
	next, left := h.v.word.leaveAlone()
	h.set(next)
	return left, next&opened == 0
}

// Pass is that of Hold.
func (h HoldAt) Pass() (passed bool) {
	next := h.v.word.unwant()
	if h.admits() {
		next, passed = h.v.word.pass()
	}
	h.set(next)
	return passed
}

// Close is that of Hold.
func (h HoldAt) Close() (was bool) {
	was = h.v.word&opened != 0
	h.set(h.v.word.close())
	return was
}

// End is that of Hold.
func (h HoldAt) End() { h.set(h.v.word.end()) }

// Inside is that of Hold.
func (h HoldAt) Inside() int { return int(h.v.word & inside) }

// Certain is that of Hold.
func (h HoldAt) Certain() bool {
	return h.v.word&ended == 0 && InTime(time.Duration(h.now), time.Duration(h.v.deadline))
}

// TakeUses is that of Hold, but returns 1 at most.
func (h HoldAt) TakeUses() int64 {
	n := h.v.word & uses / use
	h.v.word &^= uses
	return int64(n)
}
