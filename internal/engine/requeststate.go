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

// tokenState is what the server may have of a request's token, and so what its end leaves to be cleaned up.
type tokenState uint8

const (
	tokenAbsent  tokenState = iota // nothing: no call has reached the server, or it has refused the request
	tokenPresent                   // perhaps a lease or a queue entry, which a cleanup releases
	tokenInDoubt                   // the same, and a copy of a call may run later, which a tombstone keeps from being granted
)

// atServerLocked returns what the server may have of the token. While a call is under way, its outcome is unknown.
func (w *request) atServerLocked() tokenState {
	if w.copiesInFlight > 0 {
		return tokenInDoubt
	}
	return w.atServer
}

// hasInDoubt reports whether a copy of a call may still run.
func (w *request) hasInDoubt() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.atServerLocked() == tokenInDoubt
}

// copySent notes that a call is about to be sent.
func (w *request) copySent(first time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.copiesInFlight++
	if w.askedAt.IsZero() {
		w.askedAt = first
	}
}

// copyDone notes the outcome of a call.
func (w *request) copyDone(outcome transport.Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.copiesInFlight--
	switch outcome {
	case transport.Answered:
		w.atServer = max(w.atServer, tokenPresent)
	case transport.InDoubt:
		w.atServer = tokenInDoubt
	}
}

// markInDoubt notes that a call got a malformed reply, so its outcome is unknown.
func (w *request) markInDoubt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.atServer = tokenInDoubt
}

// markAbsent notes that the server has refused the request. A copy that is in doubt may still be granted something.
func (w *request) markAbsent() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.atServer != tokenInDoubt {
		w.atServer = tokenAbsent
	}
}

// stillWaiting notes that the server answered "waiting" to a call sent at that time. A place of 0 is not in the reply.
func (w *request) stillWaiting(asked time.Time, seq, place int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if asked.After(w.askedAt) || w.place == 0 {
		w.askedAt, w.floor = asked, seq
	}
	if place > 0 {
		w.place = place
	}
	if w.state == requestAsking {
		w.state = requestWaiting
	}
}

// waitedAt reports whether a call sent before that time was answered with "waiting".
func (w *request) waitedAt(at time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.place != 0 && w.askedAt.Before(at)
}

func (w *request) wasGranted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state == requestLeased || w.state == requestPermitted
}

func (w *request) hasEnded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.ended()
}
