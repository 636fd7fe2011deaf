package retain

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Hold is the local part of a lease that several callers of this process share. It is closed at first. Open opens it, once;
// Close and End close it for good. Callers enter while it is open, its deadline has not passed, and the process is known to
// receive recalls. All methods are safe for concurrent use.
//
// A hold is used in one of two ways. Of a shared lease, Enter and Leave admit any number of callers together. Of a lease for one
// holder at a time, EnterAlone and LeaveAlone admit one; the next one that waits announces itself by Want, and then gets the place
// by Pass.
//
// A caller that was closed out is never inside: entering and closing are atomic steps on one word, so that every caller that
// entered before the close is counted after it.
type Hold struct {
	word     atomic.Uint64  // see word
	deadline atomic.Int64   // ns since base, until when the lease is certain; 0: not granted yet
	epoch    atomic.Uint64  // the subscription on which a recall would have come
	current  *atomic.Uint64 // the epoch of the subscription now: even while there is none
	base     time.Time
}

// New returns a closed hold for a lease that is about to be requested. Times are measured from base on the monotonic clock.
// current counts up each time that the subscription for recalls begins or ends, and is even while there is none.
func New(base time.Time, current *atomic.Uint64) *Hold {
	h := &Hold{base: base, current: current}
	h.Confirm(current.Load())
	return h
}

// Confirm notes that the server has said, in the reply to a request that was sent during this epoch, that the lease is held and
// not recalled.
func (h *Hold) Confirm(epoch uint64) { h.epoch.Store(epoch) }

// Current returns the epoch of the subscription now.
func (h *Hold) Current() uint64 { return h.current.Load() }

// SetDeadline sets until when the lease is certain. The caller counts it from before the request was sent, and orders its calls.
func (h *Hold) SetDeadline(deadline time.Time) { h.deadline.Store(int64(deadline.Sub(h.base))) }

// Open admits callers, and counts one as inside: the one whose request brought the lease. If closed is set, it only counts that
// one; so does the end of the lease, if it came first.
func (h *Hold) Open(closed bool) {
	h.step(func(w word) (word, bool) { return w.open(closed), true })
}

// step replaces the word by the next one, and returns what next has reported.
func (h *Hold) step(next func(word) (word, bool)) bool {
	for {
		w := h.word.Load()
		changed, ok := next(word(w))
		if uint64(changed) == w || h.word.CompareAndSwap(w, uint64(changed)) {
			return ok
		}
	}
}

// Enter counts the caller as inside, or reports that it may not enter. If settle is set, the caller must call Inside to see whether it
// was the last to leave.
func (h *Hold) Enter() (ok, settle bool) {
	w := word(h.word.Add(uint64(use + 1)))
	if w.mayYield() {
		runtime.Gosched()
	}
	if w.mayStay() && h.admits() {
		return true, false
	}
	// The use stays: TakeUses may have taken it already.
	return false, h.Leave()
}

// admits reports whether the lease is certain and a recall would have come.
func (h *Hold) admits() bool {
	return Hears(h.epoch.Load(), h.current.Load()) && InTime(time.Since(h.base), time.Duration(h.deadline.Load()))
}

// Leave counts a caller as outside again. If settle is set, the hold is closed, and the caller must call Inside to see whether it
// was the last one.
func (h *Hold) Leave() (settle bool) { return word(h.word.Add(^uint64(0)))&opened == 0 }

// Entry is the outcome of EnterAlone.
type Entry uint8

// The outcomes.
const (
	Entered Entry = iota
	Busy          // another caller is inside
	Closed        // nobody may enter: the hold is closed, or its lease or the subscription is not certain
)

// EnterAlone counts the caller as inside if nobody else is. After Closed, the caller closes the hold, and calls Inside to see whether
// nobody is inside.
func (h *Hold) EnterAlone() Entry {
	for {
		w := h.word.Load()
		next, entry := word(w).enterAlone()
		if entry != Entered {
			return entry
		}
		if !h.word.CompareAndSwap(w, uint64(next)) {
			continue
		}
		if !h.admits() {
			h.word.Add(^uint64(0))
			return Closed
		}
		return Entered
	}
}

// Want announces a caller that waits for the one inside to leave. It reports false if nobody is inside, or the hold is closed.
func (h *Hold) Want() bool { return h.step(word.want) }

// Unwant ends what Want announced.
func (h *Hold) Unwant() { h.word.And(uint64(^wanted)) }

// LeaveAlone counts the caller as outside again, unless another one waits in an open hold: then left is false, and the caller
// is inside until it has called Pass or Unwant. If settle is set, the hold is closed, and the caller must call Inside.
func (h *Hold) LeaveAlone() (left, settle bool) {
	for {
		w := h.word.Load()
		next, left := word(w).leaveAlone()
		if !left || h.word.CompareAndSwap(w, uint64(next)) {
			return left, next&opened == 0
		}
	}
}

// Pass makes the one that waits the one inside, in place of the caller, if the hold is open and admits. It ends what Want announced in
// either case.
func (h *Hold) Pass() bool {
	if !h.admits() {
		h.Unwant()
		return false
	}
	return h.step(word.pass)
}

// Close closes the hold. It reports whether it was open.
func (h *Hold) Close() bool { return word(h.word.And(uint64(^opened)))&opened != 0 }

// End closes the hold because its lease has ended.
func (h *Hold) End() { h.step(func(w word) (word, bool) { return w&^opened | ended, true }) }

// Inside returns how many are inside. In a closed hold it only falls, but for callers that are about to find it closed.
func (h *Hold) Inside() int { return int(word(h.word.Load()) & inside) }

// Certain reports whether the lease has not ended and its deadline has not passed. If not, the lease knows.
func (h *Hold) Certain() bool {
	return word(h.word.Load())&ended == 0 && InTime(time.Since(h.base), time.Duration(h.deadline.Load()))
}

// TakeUses returns how many have tried to enter since it was last called.
func (h *Hold) TakeUses() int64 {
	return int64(word(h.word.And(uint64(^uses))) & uses / use)
}

// Value is what a Hold has, without pointers: the search in internal/testing/explore copies and compares it. Of the callers that have come
// since TakeUses it has whether there were any.
type Value struct {
	word     word
	deadline int64
	epoch    uint64
}

// Value returns what the hold has while nobody changes it.
func (h *Hold) Value() Value {
	w := word(h.word.Load())
	if w&uses > use {
		w = w&^uses | use
	}
	return Value{w, h.deadline.Load(), h.epoch.Load()}
}

// Hold returns a hold that has v; see New.
func (v Value) Hold(base time.Time, current *atomic.Uint64) *Hold {
	h := New(base, current)
	h.word.Store(uint64(v.word))
	h.deadline.Store(v.deadline)
	h.Confirm(v.epoch)
	return h
}
