package engine

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/timers"
)

// waitQueue holds the waiters of one name in this keeper. It sends their heartbeats together.
type waitQueue struct {
	lock   *Lock         // any lock of the name, for its keys and scripts
	health *ServerHealth // that its waiters share
	timer  timers.Timer

	mu           sync.Mutex // guards the fields below
	requests     map[*request]struct{}
	inFlight     int                         // heartbeat commands in flight
	sent         time.Time                   // when the last one was sent
	due          time.Time                   // when the next heartbeats of all waiters are due; a heartbeat before that is of the first waiter only
	again        bool                        // send one more when the last one is answered
	backoff      *backoff.ExponentialBackOff // nil while heartbeats are answered
	failingSince time.Time                   // when the first heartbeat was not answered
	deaf         bool                        // the last heartbeat said that the keeper cannot receive messages
	receivedAt   time.Time                   // when a message last said when to send a heartbeat
}

// enqueueLocked adds a request that the server has queued to its name's waitQueue, and schedules the next heartbeat. The caller holds the
// lease's mu.
func (r *request) enqueueLocked(a *protocol.AcquireReply) {
	l, e := r.lock, r.lock.e
	e.mu.Lock()
	q := e.queues[l.key(keyQueue)]
	if q == nil {
		q = &waitQueue{lock: l, health: r.health, requests: map[*request]struct{}{}, due: time.Now().Add(e.cfg.HeartbeatInterval)}
		q.timer.Handler = timers.Func(q.onTimer)
		e.queues[l.key(keyQueue)] = q
		e.subscriber.Retain(l.channel)
	}
	q.mu.Lock()
	q.requests[r] = struct{}{}
	q.mu.Unlock()
	e.mu.Unlock()
	r.health = q.health
	q.health.Answered(e.time(r.claim.Asked()))
	e.timers.SetIfSooner(&q.timer, q.next(time.Now(), a.RetryIn, a.More))
}

// reportPosition reports the position of a waiter to the observer, if it has changed.
func (r *request) reportPosition(rank int) {
	e := r.lock.e
	if e.cfg.Observe == nil {
		return
	}
	r.mu.Lock()
	moved := r.claim.Pending() && r.reportedRank != rank
	r.reportedRank = rank
	r.mu.Unlock()
	if moved {
		ev := r.lock.Event(Queued, r.observation)
		ev.Token, ev.Position = r.token, rank
		e.observe(ev)
	}
}

// next returns when the next heartbeat is due: after the interval, or after retryIn ms, when the server expects that a waiter
// can be granted the lock. If more is set, it is due at once.
func (q *waitQueue) next(now time.Time, retryIn int64, more bool) time.Time {
	switch {
	case more:
		return now
	case retryIn > 0 && duration(retryIn) < q.lock.e.cfg.HeartbeatInterval:
		return now.Add(duration(retryIn) + time.Millisecond) // a lease ends within the given millisecond
	}
	return now.Add(q.lock.e.cfg.HeartbeatInterval)
}

// leaveQueue removes the request from its waitQueue, and the waitQueue if it is empty.
func (e *Engine) leaveQueue(r *request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := r.lock.key(keyQueue)
	q := e.queues[key]
	if q == nil {
		return
	}
	q.mu.Lock()
	delete(q.requests, r)
	empty := len(q.requests) == 0
	q.mu.Unlock()
	if empty {
		delete(e.queues, key)
		e.timers.Cancel(&q.timer)
		e.subscriber.Release(q.lock.channel)
	}
}

// firstHeartbeatBy makes the first waiter of the request's queue send a heartbeat at that time at the latest, as a message asked for.
func (e *Engine) firstHeartbeatBy(r *request, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q := e.queueLocked(r); q != nil {
		q.mu.Lock()
		q.receivedAt = time.Now()
		q.mu.Unlock()
		e.timers.SetIfSooner(&q.timer, at)
	}
}

// queueWasEmpty handles a release, sent at that time, that found the queue empty. If the server had queued a waiter of this
// keeper before, it has lost the queue, as happens when its clock is set forward. The waiters then send heartbeats at once,
// since the lock may otherwise stay free until the next heartbeat.
func (l *Lock) queueWasEmpty(sent time.Time) {
	e := l.e
	e.mu.Lock()
	q := e.queues[l.key(keyQueue)]
	e.mu.Unlock()
	if q == nil {
		return
	}
	q.mu.Lock()
	waiters := slices.Collect(maps.Keys(q.requests))
	q.mu.Unlock()
	for _, r := range waiters {
		if r.place() != 0 && r.asked().Before(sent) {
			e.heartbeatsBy(r, time.Now())
			return
		}
	}
}

// heartbeatsBy makes all waiters of the request's queue send heartbeats at that time at the latest.
func (e *Engine) heartbeatsBy(r *request, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q := e.queueLocked(r); q != nil {
		q.heartbeatsBy(at)
	}
}

// queueLocked returns the waitQueue that the request is in, or nil if it has left it.
func (e *Engine) queueLocked(r *request) *waitQueue {
	q := e.queues[r.lock.key(keyQueue)]
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
func (q *waitQueue) heartbeatsBy(at time.Time) {
	q.mu.Lock()
	if q.due.After(at) {
		q.due = at
	}
	q.mu.Unlock()
	q.lock.e.timers.SetIfSooner(&q.timer, at)
}
