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
	demand float64 // permits asked for, which fade; while demand is steady, as many as are asked for in ahead
	at     claim.Instant
	most   int64 // permits in a block, after the server had too few; 0: no bound
}

// NewStock returns the stock of a name of which no permit was used lately. Blocks are used for ahead.
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

// maxShare bounds a block to 1/maxShare of the limit, because a process does not know how many others there are.
const maxShare = 4

// Next returns how many permits to request for a caller who needs n. More than n are a block.
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

// pause makes a process ask no more for 1/pause of ahead at least after a refusal, so that it finds several permits next time.
const pause = 8

// Refused notes that the server has refused size permits, of which a caller needs only need: remaining were left, and the request could be
// granted after that time. If again is positive, so many are requested now; else callers who need as many or more are refused for d.
func (s *Stock) Refused(size, need, remaining int64, after time.Duration) (again int64, d time.Duration) {
	switch half := (remaining + 1) / 2; {
	case size == need:
	case half >= need && remaining < size:
		s.most = half
		return half, 0
	default: // also if others are queued, whom nobody may pass: ask for what is needed alone, and the answer is about that
		s.most = 1
		return need, 0
	}
	return 0, min(max(after, s.ahead/pause), s.ahead)
}
