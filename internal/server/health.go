package server

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// SilenceTimeout is how long an answer may take before the server counts as unavailable. A wait that ends sooner says
	// nothing about the server.
	SilenceTimeout = 100 * time.Millisecond
	// DeadlineLead is how long before its deadline a wait sends one more request, if the last answer is not recent: enough
	// for an answer, or for SilenceTimeout to pass.
	DeadlineLead = 2 * SilenceTimeout
)

// Health records which requests for one name were answered, so that a wait whose context ends can distinguish
// contention from an outage. Callers of this process that wait locally for the same name share one. It is safe for
// concurrent use.
type Health struct {
	MaxAge time.Duration // how old the last answer may be before the server counts as unavailable; shared: guarded by mu

	mu       sync.Mutex   // guards the fields below
	answered time.Time    // when the most recent answered request was sent
	inFlight []time.Time  // when each request was sent that has not ended
	inline   [1]time.Time // storage of inFlight while it has one element, which saves an allocation
	failure  error        // of the last request that failed, unless a later one was answered
	failing  time.Time    // when the first one was sent that has failed since the last answer; zero: none has
	unsent   time.Time    // when the first one was made that was withdrawn since the last answer; zero: none was
}

// Sent records that a request is sent. Exactly one of Answered, Failed and Dropped must follow with the same time.
func (sh *Health) Sent(at time.Time) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.inFlight == nil {
		sh.inFlight = sh.inline[:0]
	}
	sh.inFlight = append(sh.inFlight, at)
}

// SetMaxAge changes MaxAge: the requests that follow are those of a caller with other pauses.
func (sh *Health) SetMaxAge(age time.Duration) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.MaxAge = age
}

func (sh *Health) endLocked(at time.Time) {
	if i := slices.IndexFunc(sh.inFlight, at.Equal); i >= 0 {
		sh.inFlight = slices.Delete(sh.inFlight, i, i+1)
	}
}

// Answered records that the request sent at that time was answered: the lock is held, or was granted.
func (sh *Health) Answered(at time.Time) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.endLocked(at)
	if at.After(sh.answered) {
		sh.answered = at
	}
	sh.failure, sh.failing = nil, time.Time{}
	if !sh.unsent.After(at) {
		sh.unsent = time.Time{}
	}
}

// Failed records that the request sent at that time was not answered, or by an error.
func (sh *Health) Failed(at time.Time, err error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.endLocked(at)
	if at.After(sh.answered) {
		sh.failure = err
		if sh.failing.IsZero() || at.Before(sh.failing) {
			sh.failing = at
		}
	}
}

// Withdrawn records that the request made at that time was given up before it could be sent.
func (sh *Health) Withdrawn(at time.Time) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.endLocked(at)
	if at.After(sh.answered) && (sh.unsent.IsZero() || at.Before(sh.unsent)) {
		sh.unsent = at
	}
}

// Exhausted returns why no request was answered, if the retry policy gives up requests of a caller who has been waiting for an answer since
// that time; else nil. What counts is how long the requests for the name have failed, whoever sent them, but not before the caller came.
func (sh *Health) Exhausted(policy Retry, since, now time.Time) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.failure == nil {
		return nil
	}
	if sh.failing.After(since) {
		since = sh.failing
	}
	if !policy.Exhausted(since, now) {
		return nil
	}
	return sh.failure
}

// Dropped records that the request sent at that time ended without information about the server.
func (sh *Health) Dropped(at time.Time) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.endLocked(at)
}

// Outage returns why it is not known whether the lock is held: the last request failed, one has been unanswered for longer
// than SilenceTimeout, or the last answer is too old. It is nil if the server answered recently.
func (sh *Health) Outage(now time.Time) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.failure != nil {
		return sh.failure
	}
	if !sh.unsent.IsZero() && now.Sub(sh.unsent) >= SilenceTimeout {
		return ErrNoAnswer
	}
	for _, at := range sh.inFlight {
		if at.After(sh.answered) && now.Sub(at) >= SilenceTimeout {
			return ErrNoAnswer
		}
	}
	if sh.answered.IsZero() || now.Sub(sh.answered) > sh.MaxAge {
		return ErrNoAnswer
	}
	return nil
}

// Stale reports whether another request would give new information: the last answer is older than age, and no request is in
// flight.
func (sh *Health) Stale(now time.Time, age time.Duration) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.failure == nil && len(sh.inFlight) == 0 && now.Sub(sh.answered) > age
}

// WaitError returns the error of a wait that ctx has ended: contention or an outage.
func (sh *Health) WaitError(ctx context.Context) error {
	if err := sh.Outage(time.Now()); err != nil {
		return Chain(err, ctx.Err())
	}
	return Chain(ErrNotAcquired, ctx.Err())
}

// NearDeadline returns a channel that receives DeadlineLead before ctx's deadline, or nil if that time has passed or there is
// no deadline.
func NearDeadline(ctx context.Context) <-chan time.Time {
	if deadline, ok := ctx.Deadline(); ok {
		if left := time.Until(deadline) - DeadlineLead; left > 0 {
			return time.After(left)
		}
	}
	return nil
}
