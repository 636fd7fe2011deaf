package ahead

import (
	"math"
	"sync/atomic"
	"time"
)

// Block is permits that the process has taken at once, to grant them to its callers one after the other. All methods are safe for concurrent
// use.
//
// At the server the permits stay taken for the window and Length more; the block ends Length after its request was sent. Suppose the window
// is 10 s and Length is 500 ms. The server counts a permit until 10.5 s after the request at least, so one that is granted 490 ms after the
// request is counted for longer than a window. Therefore no window has more grants than the limit, in however many processes.
type Block struct {
	left  atomic.Int64 // permits that are not granted yet; negative in a closed block
	taken int64
	base  time.Time
	ends  time.Duration // since base
}

// aheadShare is the share of the window for which a block is used: 1/aheadShare.
const aheadShare = 20

const (
	leastAhead = 10 * time.Millisecond
	mostAhead  = time.Second
)

// MinWindow is the shortest window for which blocks are taken.
const MinWindow = aheadShare * leastAhead

// Length returns for how long after its request a block is used, in whole milliseconds. The server counts the window as longer by it.
func Length(window time.Duration) time.Duration {
	ahead := (window/aheadShare + time.Millisecond - 1).Truncate(time.Millisecond)
	return min(max(ahead, leastAhead), mostAhead)
}

// drift makes a block end by 1/drift of Length sooner, because clocks run at different rates.
const drift = 100

// NewBlock returns a block of taken permits, to be used for ahead after its request was sent. sent is measured from base by the monotonic clock.
func NewBlock(taken int64, base time.Time, sent, ahead time.Duration) *Block {
	b := &Block{taken: taken, base: base, ends: sent + ahead - ahead/drift}
	b.left.Store(taken)
	return b
}

// Take grants n permits, and returns how many are left then and the time since base. It reports false if there are not as many, or the
// block has ended.
func (b *Block) Take(n int64) (left int64, at time.Duration, ok bool) {
	if b.left.Load() < n {
		return 0, 0, false
	}
	if left = b.left.Add(-n); left < 0 {
		b.left.Add(n)
		return 0, 0, false
	}
	if at = time.Since(b.base); at >= b.ends {
		b.left.Add(n)
		return 0, at, false
	}
	return left, at, true
}

// Close ends the block, and returns how many permits were granted, or more if a call of Take under way has yet to put some back. Later calls
// return 0.
func (b *Block) Close() (used int64) {
	left := b.left.Swap(math.MinInt64 / 2)
	if left < math.MinInt64/4 { // closed before
		return 0
	}
	return min(b.taken-left, b.taken)
}

// Taken returns how many permits the block began with.
func (b *Block) Taken() int64 { return b.taken }

// Ends returns when the block ends, since base.
func (b *Block) Ends() time.Duration { return b.ends }
