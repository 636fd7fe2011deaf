package retain

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

// Name is what a process remembers of a name, to decide whether to retain its lease. The zero Name is that of one that was never used. It is
// a value without pointers. It is not safe for concurrent use.
type Name struct {
	policy  Policy
	held    bool // there is a retained lease, or a request for one
	evicted bool // another name has taken the place of this one
}

// Wants handles that a caller is about to ask the server, and reports whether it may do so for a lease that is retained. If it does, Held
// follows.
func (n *Name) Wants(now claim.Instant) bool {
	n.policy = n.policy.Read(time.Duration(now), 1)
	return !n.held && !n.evicted && n.policy.Allows(time.Duration(now))
}

// Held notes that there is a retained lease from now on.
func (n *Name) Held() { n.held = true }

// Free notes that there is none any more; see Effects.Forget.
func (n *Name) Free() { n.held = false }

// Evict notes that another name has taken the place of this one. The lease that is retained is to be given back.
func (n *Name) Evict() { n.evicted = true }

// GaveBack notes that the lease was given back, or has become the own one of a caller (Effects.GaveBack). So many callers have come while
// it was retained. Chance is that of Policy.Recalled.
func (n *Name) GaveBack(now claim.Instant, l *Lease, uses int64, chance float64) {
	n.policy = n.policy.Read(time.Duration(now), uses)
	switch {
	case l.recalled:
		n.policy = n.policy.Recalled(time.Duration(now), now.Sub(l.recalledAt), chance)
	case l.contended:
		n.policy = n.policy.Recalled(time.Duration(now), 0, chance)
	}
}
