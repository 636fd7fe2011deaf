package server

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/transport"
)

const (
	// SilenceTimeout is how long an answer may take before the server counts as unavailable. A wait that ends sooner says
	// nothing about the server.
	SilenceTimeout = transport.SilenceTimeout
	// DeadlineLead is how long before its deadline a wait sends one more request, if the last answer is not recent: enough
	// for an answer, or for SilenceTimeout to pass.
	DeadlineLead = 2 * SilenceTimeout
)

// Answers returns how the node that has the lock's keys has answered the calls for all names.
func (r *Resource) Answers() transport.Answers { return r.s.Transport.Answers(r.KeyOf(LockKey)) }

// WaitError returns the error of a wait that ctx has ended: the outage, or ErrNotAcquired without one. In an outage it is not known whether
// somebody else has the lock.
func WaitError(ctx context.Context, outage error) error {
	if outage == nil {
		outage = ErrNotAcquired
	}
	return Chain(outage, ContextError(ctx))
}

// Outage returns why a node does not answer at present: its newest calls have failed, or one has been unanswered for SilenceTimeout, or no call
// that was sent within maxAge was answered. It returns nil if the node answers.
func Outage(a transport.Answers, maxAge time.Duration, now time.Time) error {
	if err := failure(a, now); err != nil {
		return err
	}
	if a.Last.IsZero() || now.Sub(a.Last) > maxAge {
		return ErrNoAnswer
	}
	return nil
}

// Exhausted returns why a node does not answer, if the retry policy gives up the requests of a caller who came at that time; else nil. The policy
// counts from when calls to the node began to fail, whoever sent them, but not from before the caller came.
func Exhausted(a transport.Answers, policy Retry, since, now time.Time) error {
	if a.Since.After(since) {
		since = a.Since
	}
	if !policy.Exhausted(since, now) {
		return nil
	}
	return failure(a, now)
}

// failure returns why calls to a node fail; nil: they are not known to fail.
func failure(a transport.Answers, now time.Time) error {
	switch {
	case a.Err != nil:
		return Unavailable(a.Err)
	case !a.Since.IsZero() && now.Sub(a.Since) >= SilenceTimeout:
		return ErrNoAnswer
	}
	return nil
}

// Stale reports whether another call would give new information: the last answer is older than age, and none is under way.
func Stale(a transport.Answers, age time.Duration, now time.Time) bool {
	return a.Since.IsZero() && now.Sub(a.Last) > age
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
