package ahead

import (
	"math"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

// Stock decides how many permits of a rate limit a process takes ahead, and for how long it refuses callers by itself after the server has
// refused. It is a value without pointers, and not safe for concurrent use.
type Stock struct {
	ahead  time.Duration
	demand float64 // permits asked for, weighted so that in a steady state it is as many as in the time ahead
	at     claim.Instant
	most   int64 // of a block, after the server had too few; 0: no bound
}

// NewStock returns the stock of a name of which no permit was used lately. Blocks may be used for that long.
func NewStock(ahead time.Duration) Stock { return Stock{ahead: ahead} }

// Used notes that callers were granted, or have asked the server for, so many permits.
func (s *Stock) Used(now claim.Instant, n int64) {
	s.fade(now)
	s.demand += float64(n)
}

func (s *Stock) fade(now claim.Instant) {
	if now > s.at {
		s.demand *= math.Exp(-float64(now.Sub(s.at)) / float64(s.ahead))
		s.at = now
	}
}

// maxShare is which part of a limit one block may be at most: a process does not know how many others there are.
const maxShare = 4

// Next returns how many permits to request for a caller who needs n of a window of that limit. More than n are a block.
func (s *Stock) Next(now claim.Instant, n, limit int64) int64 {
	s.fade(now)
	size := min(int64(s.demand), limit/maxShare)
	if s.most > 0 {
		size = min(size, s.most)
	}
	return max(size, n)
}

// Granted notes that the server has granted so many permits at once.
func (s *Stock) Granted(size int64) {
	if s.most > 0 && size >= s.most {
		s.most *= 2
	}
}

// pause is the part of the time ahead for which a process asks no more at least after a refusal, so that it finds several permits next time.
const pause = 8

// Refused notes that the server has refused so many permits, when that many remained, and a single caller's request could be granted
// after that time. If again is positive, that many are to be requested now; else callers who need as many, or more, are refused for d.
func (s *Stock) Refused(size, need, remaining int64, after time.Duration) (again int64, d time.Duration) {
	switch half := (remaining + 1) / 2; {
	case size == need:
	case half >= need && remaining < size:
		s.most = half
		return half, 0
	default: // also if others are queued, whom nobody passes: the answer is to be about what is needed
		s.most = 1
		return need, 0
	}
	return 0, min(max(after, s.ahead/pause), s.ahead)
}
