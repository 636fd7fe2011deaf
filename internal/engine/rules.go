package engine

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// This file has the decisions of a keeper on which exclusion depends, as functions of what it knows and of the time. They lock
// nothing and send nothing, so that the exhaustive search in internal/testing/explore calls the same code.

// LeaseUntil returns until when a lease is relied on that was granted or renewed for ttl ms by a call sent at that time.
func LeaseUntil(sent time.Time, ttl int64) time.Time { return sent.Add(trustedFor(ttl)) }

// trustedFor returns for how long a lease of ttl ms is relied on.
func trustedFor(ttl int64) time.Duration {
	d := duration(ttl)
	return d - Margin(d)
}

// GrantInTime reports whether a grant that arrives now can still be used: whether something is left of its lease.
func GrantInTime(until, now time.Time) bool { return now.Before(until) }

// WakeupCounts reports whether a message about a grant can be used. Its lease lasts for claimTTL ms from asked, when the last call was
// sent that the server answered with "waiting". floor is the last fence that it had drawn by then: a message whose fence is not
// larger is about an earlier grant. clock is the server's clock at that answer, in ms: a message whose fence is larger than the server
// can have drawn since is forged, or the clock was set ahead. Then the keeper asks the server instead, as it does if less than an eighth
// of the lease is left.
func WakeupCounts(fence, floor, clock int64, asked, now time.Time, claimTTL int64) bool {
	return fence > floor && fence <= largestFence(floor, clock, now.Sub(asked)) && LeaseUntil(asked, claimTTL).Sub(now) >= duration(claimTTL)/8
}

// fenceSlack is how much a fence may exceed what the server's clock is expected to show.
const fenceSlack = time.Second

// largestFence returns a bound of the fences that a server draws within that time of an answer, which had the last fence and the
// clock in ms. Fences follow the clock, or are one more than the last: at most one for each µs that the scripts take.
func largestFence(floor, clock int64, within time.Duration) int64 {
	return max(floor, (clock+1)*1000) + (within + fenceSlack).Microseconds()
}

// RejoinPlace returns the place at which a waiter is queued again that the server does not know: its own, or 0, the end of the
// queue, if the last call that was answered is older than a heartbeat counts.
func RejoinPlace(place int64, asked, now time.Time, heartbeatTimeout time.Duration) int64 {
	if now.Sub(asked) > heartbeatTimeout {
		return 0
	}
	return place
}

// tokenState is what the server may have of a request's token, and so what its end leaves to be cleaned up.
type tokenState uint8

const (
	tokenAbsent  tokenState = iota // nothing: no call has reached the server, or it has refused the request
	tokenPresent                   // perhaps a lease or a queue entry, which a cleanup releases
	tokenInDoubt                   // the same, and a copy of a call may run later, which a tombstone keeps from being granted
)

// TokenRecord is what a keeper knows of the calls that ask for a lease under one token. The zero value is that of a token which was
// never sent.
type TokenRecord struct {
	atServer       tokenState // by the calls that have ended; see state
	copiesInFlight int        // calls under way
}

// CopySent notes that a call is about to be sent.
func (t *TokenRecord) CopySent() { t.copiesInFlight++ }

// CopyDone notes the outcome of a call.
func (t *TokenRecord) CopyDone(outcome transport.Outcome) {
	t.copiesInFlight--
	switch outcome {
	case transport.Answered:
		t.atServer = max(t.atServer, tokenPresent)
	case transport.InDoubt:
		t.atServer = tokenInDoubt
	}
}

// Refused notes that the server has refused the request. A copy that is in doubt may still be granted something.
func (t *TokenRecord) Refused() {
	if t.atServer != tokenInDoubt {
		t.atServer = tokenAbsent
	}
}

// state returns what the server may have of the token. While a call is under way, its outcome is unknown.
func (t *TokenRecord) state() tokenState {
	if t.copiesInFlight > 0 {
		return tokenInDoubt
	}
	return t.atServer
}

// NeedsCleanup reports whether the server may have a lease or a queue entry of the token.
func (t *TokenRecord) NeedsCleanup() bool { return t.state() != tokenAbsent }

// NeedsTombstone reports whether a copy of a call may still run, which only a tombstone keeps from being granted.
func (t *TokenRecord) NeedsTombstone() bool { return t.state() == tokenInDoubt }

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
