package retain

// word is what a Hold has in one atomic word: from the top, whether the hold is open, whether its lease has ended, whether a caller waits
// for the one inside to leave, how many callers have come since TakeUses, and how many are inside. 37 bits of uses last for minutes at a
// thousand million a second. Each method is one step of a Hold, and returns the next word.
//
// There is no word per processor, of which a recall would have to look at each: on two cores an addition by both takes 5 ns each, and by one
// 2, in a read of 120 ns on one core and 95 on two. What keeps the second core from doubling the reads is the allocation of the lease, of
// which two cores make as many in a second as one.
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

// yieldEvery is after how many uses a caller lets other goroutines run. Callers who enter and leave in a loop never block, and would keep
// the processors for 10 ms each: as long as that, times the callers per processor, a recall would wait for the goroutine that handles
// it.
const yieldEvery = 128

// mayYield reports whether a caller that was counted is to do so.
func (w word) mayYield() bool { return w&(yieldEvery*use-1) < use }

// mayStay reports whether a caller that was counted may be inside.
func (w word) mayStay() bool { return w&opened != 0 && w&inside < maxInside }

// enterAlone counts a caller as inside if nobody else is.
func (w word) enterAlone() (word, Entry) {
	switch {
	case w&opened == 0:
		return w, Closed
	case w&inside != 0:
		return w, Busy
	}
	return w + use + 1, Entered
}

// want notes that a caller waits for the one inside. It reports false if there is none, or the hold is closed.
func (w word) want() (next word, ok bool) {
	if w&opened == 0 || w&inside == 0 {
		return w, false
	}
	return w | wanted, true
}

// leaveAlone counts the caller as outside, unless another one waits in an open hold.
func (w word) leaveAlone() (next word, left bool) {
	if w&opened != 0 && w&wanted != 0 {
		return w, false
	}
	return w - 1, true
}

// pass makes the one that waits the one inside, if the hold is open.
func (w word) pass() (next word, passed bool) {
	next = w &^ wanted
	if w&opened == 0 {
		return next, false
	}
	return next + use, true
}
