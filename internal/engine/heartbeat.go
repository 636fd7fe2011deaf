package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// This file sends the heartbeats of waitQueues and handles the replies.

// heartbeatBatch is the maximum number of waiters in one command: enough for one command per name and interval in all but the
// largest queues, few enough that the script takes about a millisecond.
const heartbeatBatch = 1000

// onTimer sends the heartbeats of all waiters, or of the first waiter only if those of all are not due yet.
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
		place := r.place()
		if first == nil || place < least {
			first, least = r, place
		}
	}
	return first
}

// send sends the heartbeats of some waiters in one command.
func (q *waitQueue) send(batch []*request) {
	l := q.lock
	l.e.announce()
	sent := time.Now() // before the subscription is looked at; see expectWakeup
	q.health.Sent(sent)
	call := l.heartbeatCall(q.mode(), len(batch), func(call *transport.Call) { q.heartbeatDone(call, batch, sent) })
	for _, r := range batch {
		call.Args = protocol.HeartbeatWaiter(call.Args, r.token)
	}
	l.e.transport.Send(call)
}

// mode returns that of a heartbeat that is sent now. A keeper that cannot receive messages says so: else its waiters, which the server
// passes over, would be granted the lock only if it happened to be free at one of their heartbeats.
func (q *waitQueue) mode() int {
	e := q.lock.e
	deaf := e.subscriber.CannotReceive(q.lock.channel, e.cfg.HeartbeatInterval)
	q.mu.Lock()
	q.deaf = deaf
	q.mu.Unlock()
	if deaf {
		return protocol.HeartbeatDeaf
	}
	return 0
}

// rejoin queues waiters again that the server does not know: it passed over them while their subscription was interrupted, or
// it lost its data. Waiters that have not missed a heartbeat keep their place.
func (q *waitQueue) rejoin(batch []*request) {
	l := q.lock
	now := time.Now()
	at := l.e.instant(now)
	var places []int64
	batch = slices.DeleteFunc(batch, func(r *request) bool {
		done := r.stepAt(at, claim.Event{Kind: claim.Rejoining}, nil, l.e.transport.Send)
		if done.Joins {
			places = append(places, done.Place)
		}
		return !done.Joins
	})
	if len(batch) == 0 {
		return
	}
	call := l.heartbeatCall(q.mode()+protocol.HeartbeatRejoin, len(batch), func(call *transport.Call) {
		for _, r := range batch {
			r.step(claim.Event{Kind: claim.CopyEnded, Outcome: outcomeOf(call.Err)}, nil)
		}
		q.heartbeatDone(call, batch, now)
	})
	q.health.Sent(now)
	for i, r := range batch {
		call.Args = protocol.RejoiningWaiter(call.Args, r.token, places[i])
	}
	q.mu.Lock()
	q.inFlight++
	q.mu.Unlock()
	l.e.transport.Send(call)
}

// heartbeatDone handles the reply to a heartbeat command.
func (q *waitQueue) heartbeatDone(call *transport.Call, batch []*request, sent time.Time) {
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
	unknown := q.update(call, reply, batch)
	if len(unknown) == 0 {
		q.mu.Lock()
		q.backoff = nil
		q.mu.Unlock()
		q.health.Answered(sent)
	} else { // they must rejoin first, which requires that the server can be written to
		q.health.Dropped(sent)
		q.checkMissed(unknown)
		q.rejoin(unknown)
		q.heartbeatOthers(batch)
	}
	if reply.First >= 0 {
		batch[reply.First].reportPosition(reply.Rank)
	}
	q.lock.e.timers.SetIfSooner(&q.timer, q.next(now, reply.RetryIn, reply.More || again))
}

// update applies the reply to a heartbeat command to its waiters. It returns those that the server does not know.
func (q *waitQueue) update(call *transport.Call, reply protocol.HeartbeatReply, batch []*request) (unknown []*request) {
	q.mu.Lock()
	deaf := q.deaf
	q.mu.Unlock()
	changed := make([]bool, len(batch))
	sent := q.lock.e.instant(call.Sent)
	for _, change := range reply.Changes {
		changed[change.Index] = true
		r := batch[change.Index]
		switch change.Code {
		case lua.Granted, lua.Held:
			if change.Code == lua.Held && !r.noPush && !deaf {
				q.lock.e.expectWakeup(r)
			}
			r.step(claim.Event{Kind: claim.Admitted, Sent: sent, Fence: change.Fence, TTL: change.ExpiresIn}, nil)
		case lua.Waiting:
			r.stillQueued(sent, reply, change.Place)
		case lua.Unknown:
			if !r.hasEnded() {
				unknown = append(unknown, r)
			}
		default:
			r.step(claim.Event{Kind: claim.Refused, Code: codes[change.Code]}, nil)
		}
	}
	for i, r := range batch {
		if !changed[i] {
			r.stillQueued(sent, reply, 0)
		}
	}
	return unknown
}

// stillQueued notes that a heartbeat found the request in the queue. A place of 0 is not in the reply.
func (r *request) stillQueued(sent claim.Instant, reply protocol.HeartbeatReply, place int64) {
	r.step(claim.Event{Kind: claim.StillQueued, Sent: sent, Clock: reply.Now, Fence: reply.Seq, Place: place}, nil)
}

// heartbeatOthers makes all waiters send heartbeats now, after the server did not know one of the batch, if the batch was not all:
// it may not know the others either.
func (q *waitQueue) heartbeatOthers(batch []*request) {
	q.mu.Lock()
	some := len(batch) < min(len(q.requests), heartbeatBatch)
	q.mu.Unlock()
	if some {
		q.heartbeatsBy(time.Now())
	}
}

// checkMissed replaces the subscription if the server did not know a waiter although the keeper was subscribed, and received no
// message, since the waiter's last heartbeat. Then the subscription does not receive what the server publishes.
func (q *waitQueue) checkMissed(unknown []*request) {
	e := q.lock.e
	since := e.subscriber.SubscribedSince(q.lock.channel)
	q.mu.Lock()
	received := q.receivedAt
	q.mu.Unlock()
	for _, r := range unknown {
		asked := r.asked()
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
			r.step(claim.Event{Kind: claim.GaveUp}, err)
		}
		return
	}
	e.timers.SetIfSooner(&q.timer, now.Add(pause))
}
