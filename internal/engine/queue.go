package engine

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/queue"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/timers"
)

// waitQueue holds the waiters of one name in this keeper, and does what their queue.Queue decides.
type waitQueue struct {
	lock   *Lock          // any lock of the name, for its keys and scripts
	health *server.Health // that its waiters share
	timer  timers.Timer

	mu       sync.Mutex // guards the fields below
	requests map[*request]struct{}
	state    queue.Queue                 // with as many waiters
	backoff  *backoff.ExponentialBackOff // nil while heartbeats are answered
}

func (l *Lock) newWaitQueue(health *server.Health) *waitQueue {
	q := &waitQueue{lock: l, health: health, requests: map[*request]struct{}{}}
	q.timer.Handler = timers.Func(q.onTimer)
	return q
}

// setTimerLocked sets the timer as the state says. The caller holds mu, so that another event does not come between.
func (q *waitQueue) setTimerLocked(out *queue.Effects) {
	e := q.lock.e
	switch {
	case out.Empty:
		e.Timers.Cancel(&q.timer)
	case out.Timer > 0:
		e.Timers.Set(&q.timer, e.time(out.Timer))
	}
}

// enqueueLocked adds a request that the server has queued to its name's waitQueue, and schedules the next heartbeat. The caller holds the
// lease's mu.
func (r *request) enqueueLocked(a *protocol.AcquireReply) {
	l, e := r.lock, r.lock.e
	e.mu.Lock()
	q := e.queues[l.KeyOf(server.QueueKey)]
	if q == nil {
		q = l.newWaitQueue(r.health)
		e.queues[l.KeyOf(server.QueueKey)] = q
		e.Subscriber.Retain(l.Channel)
	}
	q.join(r, a.RetryIn, a.More)
	e.mu.Unlock()
	r.health = q.health
	q.health.Answered(e.time(r.claim.Asked()))
}

// join adds a request.
func (q *waitQueue) join(r *request, retryIn int64, more bool) {
	e := q.lock.e
	q.mu.Lock()
	defer q.mu.Unlock()
	q.requests[r] = struct{}{}
	var out queue.Effects
	q.state.Join(&e.queueRules, e.now(), retryIn, more, &out)
	q.setTimerLocked(&out)
}

// reportPosition reports the position of a waiter to the observer, if it has changed.
func (r *request) reportPosition(rank int) {
	e := r.lock.e
	if e.cfg.Observe == nil {
		return
	}
	r.Mu.Lock()
	moved := r.claim.Pending() && r.reportedRank != rank
	r.reportedRank = rank
	r.Mu.Unlock()
	if moved {
		ev := r.lock.Event(Queued, r.observation)
		ev.Token, ev.Position = r.token, rank
		e.observe(ev)
	}
}

// leaveQueue removes the request from its waitQueue, and the waitQueue if it is empty.
func (e *Engine) leaveQueue(r *request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := r.lock.KeyOf(server.QueueKey)
	q := e.queues[key]
	if q == nil {
		return
	}
	if q.leave(r) {
		delete(e.queues, key)
		e.Subscriber.Release(q.lock.Channel)
	}
}

// leave removes a request, if it is in the queue, and reports whether nobody waits any more.
func (q *waitQueue) leave(r *request) (empty bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, queued := q.requests[r]; !queued {
		return false
	}
	delete(q.requests, r)
	var out queue.Effects
	q.state.Leave(&out)
	q.setTimerLocked(&out)
	return out.Empty
}

// firstHeartbeatBy makes the first waiter of the request's queue send a heartbeat at that time at the latest, as a message asked for.
func (e *Engine) firstHeartbeatBy(r *request, at claim.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q := e.queueLocked(r); q != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		var out queue.Effects
		q.state.Notified(e.now(), at, &out)
		q.setTimerLocked(&out)
	}
}

// queueWasEmpty handles a release, sent at that time, that found the queue empty. If the server had queued a waiter of this
// keeper before, it has lost the queue, as happens when its clock is set forward. The waiters then send heartbeats at once,
// since the lock may otherwise stay free until the next heartbeat.
func (l *Lock) queueWasEmpty(sent time.Time) {
	e := l.e
	e.mu.Lock()
	q := e.queues[l.KeyOf(server.QueueKey)]
	e.mu.Unlock()
	if q == nil {
		return
	}
	q.mu.Lock()
	waiters := slices.Collect(maps.Keys(q.requests))
	q.mu.Unlock()
	for _, r := range waiters {
		if r.place() != 0 && r.asked() < e.instant(sent) {
			e.heartbeatsBy(r, e.now())
			return
		}
	}
}

// heartbeatsBy makes all waiters of the request's queue send heartbeats at that time at the latest.
func (e *Engine) heartbeatsBy(r *request, at claim.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q := e.queueLocked(r); q != nil {
		q.heartbeatsBy(at)
	}
}

// queueLocked returns the waitQueue that the request is in, or nil if it has left it.
func (e *Engine) queueLocked(r *request) *waitQueue {
	q := e.queues[r.lock.KeyOf(server.QueueKey)]
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, queued := q.requests[r]; !queued {
		return nil
	}
	return q
}

// heartbeatsBy makes all waiters send heartbeats at that time at the latest.
func (q *waitQueue) heartbeatsBy(at claim.Instant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out queue.Effects
	q.state.AllBy(at, &out)
	q.setTimerLocked(&out)
}

// firstHeartbeatNow makes the first waiter send a heartbeat now.
func (q *waitQueue) firstHeartbeatNow() {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out queue.Effects
	q.state.FirstBy(q.lock.e.now(), &out)
	q.setTimerLocked(&out)
}

// heartbeatIfStale makes the first waiter of a name send a heartbeat now if the last answer is not recent.
func (e *Engine) heartbeatIfStale(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q := e.queues[key]; q != nil && q.health.Stale(time.Now(), e.Freshness()) {
		q.firstHeartbeatNow()
	}
}
