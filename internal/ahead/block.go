package ahead

import (
	"math"
	"sync/atomic"
	"time"
)

// Block is permits of a window that the process has taken at once, to grant them to its callers one after the other. All methods are safe
// for concurrent use.
//
// The permits count as taken at the server from a moment after the block was requested, and for as long as Length says in addition to the
// window. A permit that is granted before the block ends has not returned at the server when a window has passed since the grant: so no
// window has more grants than the server has counted, with any number of processes, whatever becomes of them.
type Block struct {
	left  atomic.Int64 // permits that are not granted yet; negative in a closed block
	taken int64
	base  time.Time
	ends  time.Duration // since base
}

// aheadShare is which part of the window permits may be taken ahead.
const aheadShare = 20

// Bounds of Length.
const (
	leastAhead = 10 * time.Millisecond
	mostAhead  = time.Second
)

// MinWindow is the shortest window for which blocks are taken.
const MinWindow = aheadShare * leastAhead

// Length returns for how long after its request a block of a window is used, in whole milliseconds. The server counts the window as longer
// by as much.
func Length(window time.Duration) time.Duration {
	ahead := (window/aheadShare + time.Millisecond - 1).Truncate(time.Millisecond)
	return min(max(ahead, leastAhead), mostAhead)
}

// drift is the part of Length that is left out for clocks of different rates.
const drift = 100

// NewBlock returns a block of so many permits, whose request was sent at that time since base on the monotonic clock.
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

// Close ends the block, and returns how many permits were granted, or more if callers are about to find too few. Later calls return 0.
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
