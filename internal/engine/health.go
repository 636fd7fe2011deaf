package engine

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

// ServerHealth records which requests for one name were answered, so that a wait whose context ends can distinguish
// contention from an outage. Callers of this process that wait locally for the same name share one. It is safe for
// concurrent use.
type ServerHealth struct {
	maxAge time.Duration // how old the last answer may be

	mu       sync.Mutex   // guards what follows
	answered time.Time    // when the last request left that was answered: the lock was held, or became ours
	inFlight []time.Time  // when each request left that has not ended
	inline   [1]time.Time // where inFlight lies as long as it is no longer, which spares an allocation
	failure  error        // of the last request that failed, if none that left after it was answered
}

// maxAge is how old the last answer may be for those who beat.
func (e *Engine) maxAge() time.Duration { return 2 * e.cfg.HeartbeatInterval }

// Sent records that a request is sent. Exactly one of Answered, Failed and Dropped must follow with the same time.
func (c *ServerHealth) Sent(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inFlight == nil {
		c.inFlight = c.inline[:0]
	}
	c.inFlight = append(c.inFlight, at)
}

func (c *ServerHealth) endLocked(at time.Time) {
	if i := slices.IndexFunc(c.inFlight, at.Equal); i >= 0 {
		c.inFlight = slices.Delete(c.inFlight, i, i+1)
	}
}

// Answered records that the request sent at that time was answered: the lock is held, or was granted.
func (c *ServerHealth) Answered(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(at)
	if at.After(c.answered) {
		c.answered = at
	}
	c.failure = nil
}

// Failed records that the request sent at that time was not answered, or by an error.
func (c *ServerHealth) Failed(at time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(at)
	if at.After(c.answered) {
		c.failure = err
	}
}

// Dropped records that the request sent at that time ended without information about the server.
func (c *ServerHealth) Dropped(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(at)
}

// Outage returns why it is not known whether the lock is held: the last request failed, one has been unanswered for longer
// than SilenceTimeout, or the last answer is too old. It is nil if the server answered recently.
func (c *ServerHealth) Outage(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != nil {
		return c.failure
	}
	for _, at := range c.inFlight {
		if at.After(c.answered) && now.Sub(at) >= SilenceTimeout {
			return ErrNoAnswer
		}
	}
	if c.answered.IsZero() || now.Sub(c.answered) > c.maxAge {
		return ErrNoAnswer
	}
	return nil
}

// stale says whether a question is worth while: the last answer is older than that, and none is awaited.
func (c *ServerHealth) stale(now time.Time, age time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure == nil && len(c.inFlight) == 0 && now.Sub(c.answered) > age
}

// Freshness is the age up to which the last answer is recent enough for a wait whose deadline is near; see DeadlineLead.
func (e *Engine) Freshness() time.Duration { return e.cfg.HeartbeatInterval / 4 }

// waitEnded is why there is no lease when ctx has ended the wait for it.
func (c *ServerHealth) waitEnded(ctx context.Context) error {
	if err := c.Outage(time.Now()); err != nil {
		return Chain(err, ctx.Err())
	}
	return Chain(ErrNotAcquired, ctx.Err())
}

// nearDeadline fires shortly before ctx's deadline, if that is not so near already.
func nearDeadline(ctx context.Context) (fires <-chan time.Time, stop func()) {
	if deadline, ok := ctx.Deadline(); ok {
		if left := time.Until(deadline) - DeadlineLead; left > 0 {
			timer := time.NewTimer(left)
			return timer.C, func() { timer.Stop() }
		}
	}
	return nil, func() {}
}

// askNow makes the waiters of a name ask now if they have not heard from the server lately.
func (e *Engine) askNow(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := e.queues[key]; n != nil && n.health.stale(time.Now(), e.Freshness()) {
		e.timers.SetIfSooner(&n.timer, time.Now())
	}
}
