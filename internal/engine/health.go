package engine

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// silenceTimeout is how long an answer may take before it counts as an outage, and no longer as a wait that was cut
	// short.
	silenceTimeout = 100 * time.Millisecond
	// deadlineLead is how long before its deadline a wait asks once more, if it has not heard from the server lately: time
	// for an answer, and for silence to count.
	deadlineLead = 2 * silenceTimeout
)

// serverHealth records which requests for one name the server has answered, so that a wait whose context ends can tell
// contention from an outage. The callers of this process that wait behind each other share one.
type serverHealth struct {
	maxAge time.Duration // how old the last answer may be

	mu       sync.Mutex   // guards what follows
	answered time.Time    // when the last request left that was answered: the lock was held, or became ours
	inFlight []time.Time  // when each request left that has not ended
	inline   [1]time.Time // where inFlight lies as long as it is no longer, which spares an allocation
	failure  error        // of the last request that failed, if none that left after it was answered
}

// maxAge is how old the last answer may be for those who beat.
func (e *Engine) maxAge() time.Duration { return 2 * e.cfg.HeartbeatInterval }

// sent notes that a request leaves. It ends with answer, fail or drop, with the same time.
func (c *serverHealth) sent(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inFlight == nil {
		c.inFlight = c.inline[:0]
	}
	c.inFlight = append(c.inFlight, at)
}

func (c *serverHealth) endLocked(at time.Time) {
	if i := slices.IndexFunc(c.inFlight, at.Equal); i >= 0 {
		c.inFlight = slices.Delete(c.inFlight, i, i+1)
	}
}

// answer notes that the server has said who holds the lock.
func (c *serverHealth) answer(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(at)
	if at.After(c.answered) {
		c.answered = at
	}
	c.failure = nil
}

// fail notes that a request was not answered.
func (c *serverHealth) fail(at time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(at)
	if at.After(c.answered) {
		c.failure = err
	}
}

// drop notes that a request has ended without telling anything.
func (c *serverHealth) drop(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(at)
}

// outage is why it is not known who holds the lock: the last request has failed, or one is waited for longer than an
// answer may take, or there was no answer for too long. It is nil if the server has told not long ago.
func (c *serverHealth) outage(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != nil {
		return c.failure
	}
	for _, at := range c.inFlight {
		if at.After(c.answered) && now.Sub(at) >= silenceTimeout {
			return errNoAnswer
		}
	}
	if c.answered.IsZero() || now.Sub(c.answered) > c.maxAge {
		return errNoAnswer
	}
	return nil
}

// stale says whether a question is worth while: the last answer is older than that, and none is awaited.
func (c *serverHealth) stale(now time.Time, age time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure == nil && len(c.inFlight) == 0 && now.Sub(c.answered) > age
}

// freshness is how old an answer may be that is not asked for again before a deadline.
func (e *Engine) freshness() time.Duration { return e.cfg.HeartbeatInterval / 4 }

// waitEnded is why there is no lease when ctx has ended the wait for it.
func (c *serverHealth) waitEnded(ctx context.Context) error {
	if err := c.outage(time.Now()); err != nil {
		return chain(err, ctx.Err())
	}
	return chain(ErrNotAcquired, ctx.Err())
}

// nearDeadline fires shortly before ctx's deadline, if that is not so near already.
func nearDeadline(ctx context.Context) (fires <-chan time.Time, stop func()) {
	if deadline, ok := ctx.Deadline(); ok {
		if left := time.Until(deadline) - deadlineLead; left > 0 {
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
	if n := e.queues[key]; n != nil && n.health.stale(time.Now(), e.freshness()) {
		e.timers.SetIfSooner(&n.timer, time.Now())
	}
}
