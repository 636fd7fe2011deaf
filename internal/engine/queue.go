package engine

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// heartbeatBatch is the maximum number of waiters in one command: enough for one command per name and interval in all but the
// largest queues, few enough that the script takes about a millisecond.
const heartbeatBatch = 1000

// waitQueue holds the waiters of one name in this keeper. It sends their heartbeats together.
type waitQueue struct {
	lock   *Lock // any lock of the name, for its keys and scripts
	health *ServerHealth
	timer  timers.Timer

	mu           sync.Mutex // guards the fields below
	requests     map[*request]struct{}
	inFlight     int                         // heartbeat commands in flight
	sent         time.Time                   // when the last one was sent
	due          time.Time                   // when the next heartbeats of all waiters are due; a heartbeat before that is of the first waiter only
	again        bool                        // send one more when the last one is answered
	backoff      *backoff.ExponentialBackOff // nil while heartbeats are answered
	failingSince time.Time                   // when the first heartbeat was not answered
	receivedAt   time.Time                   // when a message last said when to send a heartbeat
}

// enqueue adds a request that the server has queued to its name's waitQueue, and schedules the next heartbeat.
func (l *Lock) enqueue(r *request, a protocol.AcquireReply) {
	e := l.e
	health := r.serverHealth()
	e.mu.Lock()
	q := e.queues[l.key(keyQueue)]
	if q == nil {
		q = &waitQueue{lock: l, health: health, requests: map[*request]struct{}{}, due: time.Now().Add(e.cfg.HeartbeatInterval)}
		q.timer.Fire = q.onTimer
		e.queues[l.key(keyQueue)] = q
		e.subscriber.Retain(l.channel)
	}
	q.mu.Lock()
	q.requests[r] = struct{}{}
	q.mu.Unlock()
	due := r.due
	e.mu.Unlock()
	r.mu.Lock() // not under e.mu: a grant takes the two in the other order
	r.health = q.health
	q.health.Answered(r.askedAt)
	r.mu.Unlock()
	if r.hasEnded() { // meanwhile, so it was not removed when it ended
		e.leaveQueue(r)
		return
	}
	e.timers.SetIfSooner(&q.timer, q.next(time.Now(), a.RetryIn, a.More))
	if !due.IsZero() {
		q.heartbeatsBy(due)
	}
	r.reportPosition(a.Rank)
}

// reportPosition reports the position of a waiter to the observer, if it has changed.
func (r *request) reportPosition(rank int) {
	e := r.lock.e
	if e.cfg.Observe == nil {
		return
	}
	r.mu.Lock()
	moved := !r.state.ended() && r.reportedRank != rank
	r.reportedRank = rank
	r.mu.Unlock()
	if moved {
		ev := r.lock.event(Queued)
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
	if q := e.queueLocked(r, at); q != nil {
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
		if r.waitedAt(sent) {
			e.heartbeatsBy(r, time.Now())
			return
		}
	}
}

// heartbeatsBy makes all waiters of the request's queue send heartbeats at that time at the latest.
func (e *Engine) heartbeatsBy(r *request, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q := e.queueLocked(r, at); q != nil {
		q.heartbeatsBy(at)
	}
}

// queueLocked returns the waitQueue that the request is in. If the request is in none yet, because a message has overtaken the
// reply that queues it, queueLocked returns nil and notes that a heartbeat is due at that time when the request is queued.
func (e *Engine) queueLocked(r *request, at time.Time) *waitQueue {
	if q := e.queues[r.lock.key(keyQueue)]; q != nil {
		q.mu.Lock()
		_, queued := q.requests[r]
		q.mu.Unlock()
		if queued {
			return q
		}
	}
	if r.due.IsZero() || at.Before(r.due) {
		r.due = at
	}
	return nil
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

// onTimer sends the heartbeats of all waiters, or of the first waiter only if those of all are not
// due yet.
func (q *waitQueue) onTimer(now time.Time) {
	e := q.lock.e
	interval := e.cfg.HeartbeatInterval
	q.mu.Lock()
	if len(q.requests) == 0 {
		q.mu.Unlock()
		return
	}
	if q.inFlight > 0 && now.Sub(q.sent) < 2*interval {
		// The last one is in flight. It may have run before the event that made this one due.
		q.again = true
		q.mu.Unlock()
		e.timers.Set(&q.timer, now.Add(interval))
		return
	}
	q.sent, q.again = now, false
	waiters := slices.Collect(maps.Keys(q.requests))
	batches := 1
	early := now.Before(q.due)
	if !early {
		q.due = now.Add(interval)
		batches = (len(waiters) + heartbeatBatch - 1) / heartbeatBatch
	}
	due := q.due
	q.inFlight += batches
	q.mu.Unlock()
	e.timers.Set(&q.timer, due)
	if early {
		waiters = []*request{firstWaiter(waiters)}
	}
	for batch := range slices.Chunk(waiters, heartbeatBatch) {
		q.send(batch)
	}
}

// firstWaiter returns the waiter that is ahead of the others in the queue.
func firstWaiter(waiters []*request) (first *request) {
	least := int64(0)
	for _, r := range waiters {
		r.mu.Lock()
		place := r.place
		r.mu.Unlock()
		if first == nil || place < least {
			first, least = r, place
		}
	}
	return first
}

// send sends the heartbeats of some waiters in one command.
func (q *waitQueue) send(batch []*request) {
	l := q.lock
	sent := time.Now()
	q.health.Sent(sent)
	call := l.heartbeatCall(len(batch), func(call *transport.Call) { q.heartbeatDone(call, batch, sent) })
	for _, r := range batch {
		call.Args = protocol.HeartbeatWaiter(call.Args, r.token)
	}
	l.e.transport.Send(call)
}

// rejoin queues waiters again that the server does not know: it passed over them while their subscription was interrupted, or
// it lost its data. Waiters that have not missed a heartbeat keep their place.
func (q *waitQueue) rejoin(batch []*request) {
	l := q.lock
	now := time.Now()
	call := l.rejoinCall(len(batch), func(call *transport.Call) {
		for _, r := range batch {
			r.copyDone(transport.OutcomeOf(call.Err))
		}
		q.heartbeatDone(call, batch, now)
	})
	q.health.Sent(now)
	for _, r := range batch {
		r.copySent(now)
		r.mu.Lock()
		place := r.place
		if now.Sub(r.askedAt) > l.e.cfg.HeartbeatTimeout {
			place = 0
		}
		r.mu.Unlock()
		call.Args = protocol.RejoiningWaiter(call.Args, r.token, place)
	}
	q.mu.Lock()
	q.inFlight++
	q.mu.Unlock()
	l.e.transport.Send(call)
}

// decodeHeartbeat returns the reply to a heartbeat command with that many waiters.
func decodeHeartbeat(call *transport.Call, waiters int) (protocol.HeartbeatReply, error) {
	return decode(call, func(n []int64) (protocol.HeartbeatReply, error) { return protocol.ParseHeartbeatReply(n, waiters) })
}

// heartbeatDone handles the reply to a heartbeat command.
func (q *waitQueue) heartbeatDone(call *transport.Call, batch []*request, sent time.Time) {
	e := q.lock.e
	reply, err := decodeHeartbeat(call, len(batch))
	if err != nil {
		q.health.Failed(sent, err)
		q.failed(err, batch)
		return
	}
	now := time.Now()
	q.mu.Lock()
	q.inFlight--
	again := q.again
	q.mu.Unlock()

	var unknown []*request
	waiting := make([]bool, len(batch))
	for i := range waiting {
		waiting[i] = true
	}
	for _, x := range reply.Changes {
		r := batch[x.Index]
		switch x.Code {
		case lua.Granted, lua.Held:
			waiting[x.Index] = false
			if x.Code == lua.Held && !r.noPush {
				e.expectWakeup(r)
			}
			if r.grant(x.Fence, call.Sent, x.ExpiresIn, leaseUnconfirmed) == ErrTooLate {
				q.heartbeatsBy(call.Sent.Add(duration(x.ExpiresIn) + time.Millisecond)) // when the lease has ended
			}
		case lua.Waiting:
			r.stillWaiting(call.Sent, reply.Seq, x.Place)
		case lua.Unknown:
			waiting[x.Index] = false
			if !r.hasEnded() {
				unknown = append(unknown, r)
			}
		case lua.Tombstoned:
			waiting[x.Index] = false
			r.leave(q.lock.fail(ErrNotAcquired, errTombstoned))
		case lua.Refused:
			waiting[x.Index] = false
			r.leave(q.lock.fail(ErrNotAcquired))
		case lua.Conflict:
			waiting[x.Index] = false
			r.leave(q.lock.fail(ErrConflict))
		case lua.AboveLimit:
			waiting[x.Index] = false
			r.leave(q.lock.fail(ErrAboveLimit))
		}
	}
	if len(unknown) == 0 { // otherwise they must rejoin first, which requires that the server can be written to
		q.mu.Lock()
		q.backoff = nil
		q.mu.Unlock()
		q.health.Answered(sent)
	} else {
		q.health.Dropped(sent)
	}
	q.checkMissed(unknown)
	for i, r := range batch {
		if waiting[i] {
			r.stillWaiting(call.Sent, reply.Seq, 0)
		}
	}
	if len(unknown) > 0 {
		q.rejoin(unknown)
	}
	q.heartbeatOthers(batch, unknown)
	if reply.First >= 0 {
		batch[reply.First].reportPosition(reply.Rank)
	}
	e.timers.SetIfSooner(&q.timer, q.next(now, reply.RetryIn, reply.More || again))
}

// heartbeatOthers makes all waiters send heartbeats now if the heartbeat was of some of them only and the server did not know
// one: it may not know the others either.
func (q *waitQueue) heartbeatOthers(batch, unknown []*request) {
	q.mu.Lock()
	some := len(batch) < min(len(q.requests), heartbeatBatch)
	q.mu.Unlock()
	if some && len(unknown) > 0 {
		q.heartbeatsBy(time.Now())
	}
}

// checkMissed replaces the subscription if the server did not know a waiter although the keeper was subscribed, and received no
// message, since the waiter's last heartbeat. Then the subscription does not receive what the server publishes.
func (q *waitQueue) checkMissed(unknown []*request) {
	if len(unknown) == 0 {
		return
	}
	e := q.lock.e
	since := e.subscriber.SubscribedSince(q.lock.channel)
	q.mu.Lock()
	received := q.receivedAt
	q.mu.Unlock()
	for _, r := range unknown {
		r.mu.Lock()
		asked := r.askedAt
		r.mu.Unlock()
		if !since.IsZero() && since.Before(asked) && !received.After(asked) && !r.noPush {
			e.subscriber.Replace(q.lock.channel)
			return
		}
	}
}

// failed handles a heartbeat command that was not answered.
func (q *waitQueue) failed(err error, batch []*request) {
	e := q.lock.e
	now := time.Now()
	q.mu.Lock()
	q.inFlight--
	if q.backoff == nil {
		q.backoff = e.cfg.Retry.NewBackoff()
		q.failingSince = now
	}
	q.due = now
	giveUp := !transport.Retryable(err) || e.cfg.Retry.Exhausted(q.failingSince, now)
	pause := min(q.backoff.NextBackOff(), e.cfg.HeartbeatInterval)
	q.mu.Unlock()
	if giveUp {
		for _, r := range batch {
			r.leave(q.lock.fail(err))
		}
		return
	}
	e.timers.SetIfSooner(&q.timer, now.Add(pause))
}
