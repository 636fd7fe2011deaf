package wait

import (
	"maps"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/queue"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// This file sends the heartbeats of waitQueues and handles the replies.

// onTimer sends the heartbeats that are due.
func (q *waitQueue) onTimer(now time.Time) {
	q.mu.Lock()
	var out queue.Effects
	q.state.Fired(&q.of.rules, q.of.s.Instant(now), &out)
	q.setTimerLocked(&out)
	var waiters []Waiter
	if out.Beat != queue.NoBeat {
		waiters = slices.Collect(maps.Keys(q.requests))
	}
	q.mu.Unlock()
	if out.Beat == queue.First {
		waiters = []Waiter{firstWaiter(waiters)}
	}
	for batch := range slices.Chunk(waiters, queue.Batch) {
		q.send(batch)
	}
}

// step tells a waiter's claim of an event.
func (q *waitQueue) step(w Waiter, ev claim.Event, cause error) { w.StepAt(q.of.s.Now(), ev, cause) }

// firstWaiter returns the waiter that is ahead of the others in the queue.
func firstWaiter(waiters []Waiter) (first Waiter) {
	least := int64(0)
	for _, r := range waiters {
		place := r.Place()
		if first == nil || place < least {
			first, least = r, place
		}
	}
	return first
}

// send sends the heartbeats of some waiters in one command.
func (q *waitQueue) send(batch []Waiter) {
	l := q.lock
	q.of.s.Announce()
	sent := time.Now() // before the subscription is looked at; see expectGrant
	q.health.Sent(sent)
	unsubscribed := q.isUnsubscribed()
	call := l.HeartbeatCall(mode(unsubscribed), len(batch), func(call *transport.Call) { q.heartbeatDone(call, batch, sent, unsubscribed) })
	for _, r := range batch {
		call.Args = protocol.HeartbeatWaiter(call.Args, r.Token())
	}
	q.of.s.Transport.Send(call)
}

// isUnsubscribed reports whether the keeper cannot receive messages. Its heartbeats say so: else its waiters, which the server passes over, would
// be granted the lock only if it happened to be free at one of their heartbeats.
func (q *waitQueue) isUnsubscribed() bool {
	return q.of.s.Subscriber.CannotReceive(q.lock.Channel, q.of.s.Config.HeartbeatInterval)
}

// mode returns that of a heartbeat.
func mode(unsubscribed bool) int {
	if unsubscribed {
		return protocol.HeartbeatUnsubscribed
	}
	return 0
}

// rejoin prepares the command that queues waiters again that the server does not know: it passed over them while their subscription was
// interrupted, or it lost its data. Waiters that have not missed a heartbeat keep their place. It returns nil if none waits any more.
func (q *waitQueue) rejoin(batch []Waiter) *transport.Call {
	l := q.lock
	now := time.Now()
	at := q.of.s.Instant(now)
	var places []int64
	batch = slices.DeleteFunc(batch, func(r Waiter) bool {
		done := r.StepAt(at, claim.Event{Kind: claim.Rejoining}, nil)
		if done.Joins {
			places = append(places, done.Place)
		}
		return !done.Joins
	})
	if len(batch) == 0 {
		return nil
	}
	unsubscribed := q.isUnsubscribed()
	call := l.HeartbeatCall(mode(unsubscribed)+protocol.HeartbeatRejoin, len(batch), func(call *transport.Call) {
		for _, r := range batch {
			q.step(r, claim.Event{Kind: claim.CopyEnded, Outcome: server.OutcomeOf(call.Err)}, nil)
		}
		q.heartbeatDone(call, batch, now, unsubscribed)
	})
	q.health.Sent(now)
	for i, r := range batch {
		call.Args = protocol.RejoiningWaiter(call.Args, r.Token(), places[i])
	}
	return call
}

// heartbeatDone handles the reply to a heartbeat command, which has said whether the keeper cannot receive messages.
func (q *waitQueue) heartbeatDone(call *transport.Call, batch []Waiter, sent time.Time, unsubscribed bool) {
	reply, err := server.DecodeHeartbeat(call, len(batch))
	if err != nil {
		q.health.Failed(sent, err)
		q.failed(err, batch)
		return
	}
	now := q.of.s.Now()
	unknown := q.update(call, reply, batch, unsubscribed)
	var again *transport.Call // that queues them again
	if len(unknown) == 0 {
		q.health.Answered(sent)
	} else { // they must rejoin first, which requires that the server can be written to
		q.health.Dropped(sent)
		q.checkMissed(unknown)
		again = q.rejoin(unknown)
	}
	if reply.First >= 0 {
		batch[reply.First].ReportPosition(reply.Rank)
	}
	q.mu.Lock()
	var out queue.Effects
	q.state.Answered(&q.of.rules, now, len(batch), len(unknown), again != nil, reply.RetryIn, reply.More, &out)
	q.setTimerLocked(&out)
	if !q.state.Failing() {
		q.backoff = nil
	}
	q.mu.Unlock()
	if again != nil {
		q.of.s.Transport.Send(again)
	}
}

// update applies the reply to a heartbeat command to its waiters. It returns those that the server does not know.
func (q *waitQueue) update(call *transport.Call, reply protocol.HeartbeatReply, batch []Waiter, unsubscribed bool) (unknown []Waiter) {
	changed := make([]bool, len(batch))
	sent := q.of.s.Instant(call.Sent)
	for _, change := range reply.Changes {
		changed[change.Index] = true
		r := batch[change.Index]
		switch change.Code {
		case lua.Granted, lua.Held:
			if change.Code == lua.Held {
				q.expectGrant(r, unsubscribed || r.Unsubscribed())
			}
			q.step(r, claim.Event{Kind: claim.Admitted, Sent: sent, Fence: change.Fence, TTL: change.ExpiresIn}, nil)
		case lua.Waiting:
			q.stillQueued(r, sent, reply, change.Place)
		case lua.Unknown:
			if !r.HasEnded() {
				unknown = append(unknown, r)
			}
		default:
			q.step(r, claim.Event{Kind: claim.Refused, Code: server.CodeOf(change.Code)}, nil)
		}
	}
	for i, r := range batch {
		if !changed[i] {
			q.stillQueued(r, sent, reply, 0)
		}
	}
	return unknown
}

// stillQueued notes that a heartbeat found the request in the queue. A place of 0 is not in the reply.
func (q *waitQueue) stillQueued(r Waiter, sent claim.Instant, reply protocol.HeartbeatReply, place int64) {
	q.step(r, claim.Event{Kind: claim.StillQueued, Sent: sent, Clock: reply.Now, Fence: reply.Seq, Place: place}, nil)
}

// expectGrant expects the message about a grant that a heartbeat has found, unless it was received already, could have been lost with an
// earlier subscription, or is not sent, since the keeper has said that it cannot receive any.
func (q *waitQueue) expectGrant(w Waiter, unsubscribed bool) {
	since := q.of.s.Instant(q.of.s.Subscriber.SubscribedSince(q.lock.Channel))
	if queue.GrantExpected(since, w.Asked(), unsubscribed) {
		q.of.messages.ExpectGrant(w.Serial(), q.lock.Channel)
	}
}

// checkMissed replaces the subscription if the server did not know a waiter although the subscription should have kept it queued.
func (q *waitQueue) checkMissed(unknown []Waiter) {
	e := q.of.s
	since := e.Instant(e.Subscriber.SubscribedSince(q.lock.Channel))
	for _, r := range unknown {
		asked := r.Asked()
		q.mu.Lock()
		missed := !r.Unsubscribed() && q.state.Missed(since, asked)
		q.mu.Unlock()
		if missed {
			e.Subscriber.Replace(q.lock.Channel)
			return
		}
	}
}

// failed handles a heartbeat command that was not answered.
func (q *waitQueue) failed(err error, batch []Waiter) {
	q.mu.Lock()
	if !q.state.Failing() {
		q.backoff = q.of.s.Config.Retry.NewBackoff()
	}
	var out queue.Effects
	q.state.Failed(&q.of.rules, q.of.s.Now(), transport.Retryable(err), q.backoff.NextBackOff(), &out)
	q.setTimerLocked(&out)
	q.mu.Unlock()
	if !out.GiveUp {
		return
	}
	for _, r := range batch {
		q.step(r, claim.Event{Kind: claim.GaveUp}, err)
	}
}
