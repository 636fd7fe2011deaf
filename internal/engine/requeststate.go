package engine

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// requestState is the state of a request for its caller, and how it ended. docs/protocol.md has the transitions.
type requestState uint8

const (
	requestAsking    requestState = iota // not answered yet
	requestWaiting                       // the server has queued it
	requestLeased                        // granted, with a lease
	requestPermitted                     // granted without a lease: its permits return by the clock alone, so nothing is held
	requestFailed                        // not granted, or not to this caller
)

func (s requestState) ended() bool { return s >= requestLeased }

// hasInDoubt reports whether a copy of a call may still run.
func (r *request) hasInDoubt() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.NeedsTombstone()
}

// copySent notes that a call is about to be sent; it may be nil if it is not for this request alone. It reports false if the request has
// ended: then the call must not be sent, since the cleanup, if there is one, does not know of it.
func (r *request) copySent(first time.Time, call *transport.Call) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state.ended() {
		return false
	}
	r.CopySent()
	r.call = call
	if r.askedAt.IsZero() {
		r.askedAt = first
	}
	return true
}

// copyDone notes the outcome of a call, which is nil if it is not for this request alone.
func (r *request) copyDone(call *transport.Call, outcome transport.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if call != nil {
		if r.call != call {
			return // it was withdrawn
		}
		r.call = nil
	}
	r.CopyDone(outcome)
}

// withdrawLocked prevents the call under way from being sent, if it is still queued. It is called when the request ends.
func (r *request) withdrawLocked() {
	if r.call == nil || !r.call.Withdraw() {
		return
	}
	r.call = nil
	r.CopyDone(transport.NotSent)
}

// markInDoubt notes that a call got a malformed reply, so its outcome is unknown.
func (r *request) markInDoubt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.atServer = tokenInDoubt
}

// markAbsent notes that the server has refused the request. A copy that is in doubt may still be granted something.
func (r *request) markAbsent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Refused()
}

// stillWaiting notes that the server answered "waiting" to a call sent at that time, when its clock showed so many ms. A place of 0 is
// not in the reply. It returns the fence of a message that has overtaken the first such answer, or 0.
func (r *request) stillWaiting(asked time.Time, clock, seq, place int64) (early int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if asked.After(r.askedAt) || r.place == 0 {
		r.askedAt, r.clock, r.floor = asked, clock, seq
	}
	early, r.early = r.early, 0
	if place > 0 {
		r.place = place
	}
	if r.state == requestAsking {
		r.state = requestWaiting
	}
	return early
}

// waitedAt reports whether a call sent before that time was answered with "waiting".
func (r *request) waitedAt(at time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.place != 0 && r.askedAt.Before(at)
}

func (r *request) wasGranted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state == requestLeased || r.state == requestPermitted
}

func (r *request) hasEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.ended()
}
