package engine

// retentionState is the state of a retention.
type retentionState uint8

const (
	retentionAsking   retentionState = iota // its lease was not granted yet
	retentionShared                         // callers may be inside
	retentionDetached                       // the lease belongs to the caller of an upgrade alone
	retentionOver                           // the lease is given back, or was never granted
)

// RetentionRecord is what a keeper knows of a lease that it retains, besides who is inside (retain.Hold). The zero value is that
// of a lease that was not granted yet.
type RetentionRecord struct {
	state    retentionState
	closing  bool // it admits nobody any more, and ends when nobody is inside
	recalled bool // because somebody waits whom it excludes

	contended bool // others may have waited already when it was granted, and nobody recalls it for them
}

// Granted notes that the lease was granted, and reports whether others are admitted by it: not if it was recalled before its grant
// was known. The caller whose request brought it is inside in any case.
func (x *RetentionRecord) Granted() (admits bool) {
	x.state = retentionShared
	return !x.closing
}

// GrantedAlone is Granted for a lease with one holder at a time. It also admits nobody else if it was granted by way of the queue: the
// server does not recall it for those who were queued behind it.
func (x *RetentionRecord) GrantedAlone(queued bool) (admits bool) {
	x.contended = queued
	x.closing = x.closing || queued
	return x.Granted()
}

// GiveBack notes that nobody is admitted any more. Recalled says that somebody waits whom the lease excludes. It reports whether this is
// the first time that somebody does.
func (x *RetentionRecord) GiveBack(recalled bool) (first bool) {
	first = recalled && !x.recalled && x.state < retentionDetached
	x.recalled = x.recalled || first
	x.closing = true
	return first
}

// Settle reports whether the lease is to be released now, with so many inside. It does so once.
func (x *RetentionRecord) Settle(inside int) bool {
	if x.state != retentionShared || !x.closing || inside > 0 {
		return false
	}
	x.state = retentionOver
	return true
}
