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
	failed   span         // the requests that have failed, of those sent since then
	failure  error        // of the last of them
	unsent   span         // the requests that were withdrawn, of those made since then
}

// span is the first and the last of some requests, by when they were made; zero: there is none. Those between them are not remembered.
type span struct{ first, last time.Time }

// add adds a request, and reports whether it is the last.
func (s *span) add(at time.Time) (last bool) {
	if last = at.After(s.last); last {
		s.last = at
	}
	if s.first.IsZero() || at.Before(s.first) {
		s.first = at
	}
	return last
}

// removeUntil removes the requests up to that time.
func (s *span) removeUntil(at time.Time) {
	if !s.last.After(at) {
		*s = span{}
	} else if !s.first.After(at) {
		s.first = s.last
	}
}

// Sent records that a request is sent. Exactly one of Answered, Failed, Withdrawn and Dropped must follow with the same time.
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

// endLocked notes that a request has ended, and reports whether it was sent after the last one that was answered.
func (sh *Health) endLocked(at time.Time) (later bool) {
	if i := slices.IndexFunc(sh.inFlight, at.Equal); i >= 0 {
		sh.inFlight = slices.Delete(sh.inFlight, i, i+1)
	}
	return at.After(sh.answered)
}

// Answered records that the request sent at that time was answered: the lock is held, or was granted.
func (sh *Health) Answered(at time.Time) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.endLocked(at) {
		sh.answered = at
	}
	sh.failed.removeUntil(at)
	sh.unsent.removeUntil(at)
}

// Failed records that the request sent at that time was not answered, or by an error.
func (sh *Health) Failed(at time.Time, err error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.endLocked(at) && sh.failed.add(at) {
		sh.failure = err
	}
}

// Withdrawn records that the request made at that time was given up before it could be sent.
func (sh *Health) Withdrawn(at time.Time) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.endLocked(at) {
		sh.unsent.add(at)
	}
}

// Exhausted returns why no request was answered, if the retry policy gives up requests of a caller who has been waiting for an answer since
// that time; else nil. What counts is how long the requests for the name have failed, whoever sent them, but not before the caller came.
func (sh *Health) Exhausted(policy Retry, since, now time.Time) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.failed.first.After(since) {
		since = sh.failed.first
	}
	if sh.failed == (span{}) || !policy.Exhausted(since, now) {
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

// Outage returns why it is not known whether the lock is held: of the requests sent after the last one that was answered, one failed or has
// been unanswered for SilenceTimeout; or that one was sent longer than MaxAge ago. When the answers and failures came makes no difference.
func (sh *Health) Outage(now time.Time) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.failed != (span{}) {
		return sh.failure
	}
	if first := sh.unsent.first; !first.IsZero() && now.Sub(first) >= SilenceTimeout {
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
	return sh.failed == (span{}) && len(sh.inFlight) == 0 && now.Sub(sh.answered) > age
}

// WaitError returns the error of a wait that ctx has ended: contention or an outage.
func (sh *Health) WaitError(ctx context.Context) error {
	if err := sh.Outage(time.Now()); err != nil {
		return Chain(err, ContextError(ctx))
	}
	return Chain(ErrNotAcquired, ContextError(ctx))
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
