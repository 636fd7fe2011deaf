package keeper

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/queue"
	"github.com/lockkeeper/lockkeeper/internal/random"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// waitQueues has a waitQueue for each name whose waiters the server has queued. It is safe for concurrent use.
type waitQueues struct {
	k     *Keeper
	rules queue.Rules

	mu     sync.Mutex            // guards the field below
	byName map[string]*waitQueue // by the key of the lock
}

func newWaitQueues(k *Keeper) *waitQueues {
	return &waitQueues{
		k: k, byName: map[string]*waitQueue{},
		rules: queue.Rules{Interval: k.Config.HeartbeatInterval, Timeout: k.Config.HeartbeatTimeout, MaxElapsed: k.Config.Retry.MaxElapsed},
	}
}

// waitQueue holds this keeper's waiters of one name, and does what their queue.Queue decides.
type waitQueue struct {
	of    *waitQueues
	lock  *server.Resource // any lock of the name, for its keys and scripts
	timer timers.Timer

	mu       sync.Mutex // guards the fields below
	requests map[*request]struct{}
	state    queue.Queue    // counts these requests
	backoff  random.Backoff // while heartbeats fail
}

func (ws *waitQueues) newQueue(l *server.Resource) *waitQueue {
	q := &waitQueue{of: ws, lock: l, requests: map[*request]struct{}{}}
	q.timer.Handler = timers.Func(q.onTimer)
	return q
}

// setTimerLocked sets the timer as out says. The caller has held mu since the event, so that no other event sets the timer first.
func (q *waitQueue) setTimerLocked(out *queue.Effects) {
	k := q.of.k
	switch {
	case out.Empty:
		k.Timers.Cancel(&q.timer)
	case out.Timer > 0:
		k.Timers.Set(&q.timer, k.Time(out.Timer))
	}
}

// join adds a request that the server has queued to the queue of its name, and schedules the next heartbeat. The caller holds the request's Mu.
func (ws *waitQueues) join(r *request) {
	l, key := r.lock.AtServer(), r.lock.Key()
	id, _, _ := strings.Cut(r.token, ":")
	ws.mu.Lock()
	ws.k.Subscriber.Use(l.Channel, id)
	q := ws.byName[key]
	if q == nil {
		q = ws.newQueue(l)
		ws.byName[key] = q
		ws.k.Subscriber.Hold(l.Channel)
	}
	q.join(r)
	ws.mu.Unlock()
}

// join adds a request. The caller holds the request's Mu.
func (q *waitQueue) join(r *request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.requests[r] = struct{}{}
	var out queue.Effects
	q.state.Join(&q.of.rules, q.of.k.Now(), r.queued.retryIn, r.queued.more, &out)
	q.setTimerLocked(&out)
}

// waiters returns the number of requests in all queues.
func (ws *waitQueues) waiters() (n int) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, q := range ws.byName {
		q.mu.Lock()
		n += len(q.requests)
		q.mu.Unlock()
	}
	return n
}

// leave removes a request from the queue of its name, if it is there, and the queue if it is empty then.
func (ws *waitQueues) leave(r *request) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	key := r.lock.Key()
	if q := ws.byName[key]; q != nil && q.leave(r) {
		delete(ws.byName, key)
		ws.k.Subscriber.Release(q.lock.Channel)
	}
}

// leave removes a request, and reports whether the queue is empty then. It reports false if the request is not in the queue.
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

// firstBeatBy makes the first waiter of the request's queue send a heartbeat by at, because a message has asked for that.
func (ws *waitQueues) firstBeatBy(r *request, at claim.Instant) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if q := ws.queueLocked(r); q != nil {
		q.change(func(out *queue.Effects) { q.state.Notified(ws.k.Now(), at, out) })
	}
}

// heartbeatsBy makes all waiters of the request's queue send heartbeats by at.
func (ws *waitQueues) heartbeatsBy(r *request, at claim.Instant) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if q := ws.queueLocked(r); q != nil {
		q.heartbeatsBy(at)
	}
}

// heartbeatsOf makes all waiters of a channel send heartbeats now.
func (ws *waitQueues) heartbeatsOf(channel string) {
	now := ws.k.Now()
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, q := range ws.byName {
		if q.lock.Channel == channel {
			q.heartbeatsBy(now)
		}
	}
}

// wasEmpty handles a release that found the server's queue empty. If a waiter of this keeper was in the queue before the release was sent, the
// server has lost the queue, for example because its clock was set forward. Then the waiters send heartbeats at once, because the lock would
// stay free until the next heartbeat.
func (ws *waitQueues) wasEmpty(l *server.Resource, sent time.Time) {
	ws.mu.Lock()
	q := ws.byName[l.Key()]
	ws.mu.Unlock()
	if q == nil {
		return
	}
	q.mu.Lock()
	waiters := slices.Collect(maps.Keys(q.requests))
	q.mu.Unlock()
	for _, w := range waiters {
		if c := w.Snapshot(); c.Place() != 0 && c.Asked() < ws.k.Instant(sent) {
			ws.heartbeatsBy(w, ws.k.Now())
			return
		}
	}
}

// heartbeatIfStale makes the first waiter of a name send a heartbeat now if the server's last answer is not recent.
func (ws *waitQueues) heartbeatIfStale(key string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if q := ws.byName[key]; q != nil && server.Stale(q.lock.Answers(), ws.k.Freshness(), time.Now()) {
		q.change(func(out *queue.Effects) { q.state.FirstBy(ws.k.Now(), out) })
	}
}

// queueLocked returns the waitQueue that has the request, or nil if the request has left.
func (ws *waitQueues) queueLocked(r *request) *waitQueue {
	q := ws.byName[r.lock.Key()]
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

// heartbeatsBy makes all waiters send heartbeats by at.
func (q *waitQueue) heartbeatsBy(at claim.Instant) {
	q.change(func(out *queue.Effects) { q.state.AllBy(at, out) })
}

// change calls event, which passes an event to the state, and sets the timer as the state decides.
func (q *waitQueue) change(event func(out *queue.Effects)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out queue.Effects
	event(&out)
	q.setTimerLocked(&out)
}

// onTimer sends the heartbeats that are due.
func (q *waitQueue) onTimer(now time.Time) {
	q.mu.Lock()
	var out queue.Effects
	q.state.Fired(&q.of.rules, q.of.k.Instant(now), &out)
	q.setTimerLocked(&out)
	var waiters []*request
	if out.Beat != queue.NoBeat {
		waiters = slices.Collect(maps.Keys(q.requests))
	}
	q.mu.Unlock()
	sortByPlace(waiters)
	if out.Beat == queue.First {
		waiters = waiters[:1]
	}
	for batch := range slices.Chunk(waiters, queue.Batch) {
		q.send(batch)
	}
}

// step passes an event to a waiter's claim.
func (q *waitQueue) step(r *request, ev claim.Event, cause error) { r.StepAt(q.of.k.Now(), ev, cause) }

// sortByPlace sorts waiters as they are in the queue.
func sortByPlace(waiters []*request) {
	places := make(map[*request]int64, len(waiters))
	for _, r := range waiters {
		places[r] = r.Snapshot().Place()
	}
	slices.SortFunc(waiters, func(a, b *request) int { return cmp.Compare(places[a], places[b]) })
}

// send sends the heartbeats of some waiters in one command, in the order of their places, by which the server finds the first of them.
func (q *waitQueue) send(batch []*request) {
	l := q.lock
	q.of.k.Announce()
	unsubscribed := q.isUnsubscribed()
	call := &transport.Call{Done: transport.Func(func(call *transport.Call) { q.heartbeatDone(call, batch, unsubscribed) })}
	l.SetHeartbeat(call, mode(unsubscribed), len(batch))
	for _, r := range batch {
		call.Args = append(call.Args, r.Token())
	}
	q.of.k.Transport.Send(call)
}

// isUnsubscribed reports whether the keeper does not count on messages, and begins the subscription if there is none. The heartbeats say so to
// the server, which then grants the waiters the lock in their turn without looking for a subscriber.
func (q *waitQueue) isUnsubscribed() bool {
	sub := q.of.k.Subscriber
	if sub.Reliable(q.lock.Channel) {
		return false
	}
	sub.Begin(q.lock.Channel)
	return true
}

// mode returns the mode of a heartbeat.
func mode(unsubscribed bool) int {
	if unsubscribed {
		return protocol.HeartbeatUnsubscribed
	}
	return 0
}

// rejoin prepares the command that queues waiters again, because the server does not know them: it saw no subscription and passed over them, or
// it lost its data. Waiters that have not missed a heartbeat keep their places. Until their next heartbeats they do not count on the
// subscription, so that they are not passed over again. rejoin returns nil if none of them waits any more.
func (q *waitQueue) rejoin(batch []*request) *transport.Call {
	l := q.lock
	at := q.of.k.Now()
	var places []int64
	batch = slices.DeleteFunc(batch, func(r *request) bool {
		done := r.StepAt(at, claim.Event{Kind: claim.Rejoining}, nil)
		if done.Joins {
			places = append(places, done.Place)
		}
		return !done.Joins
	})
	if len(batch) == 0 {
		return nil
	}
	call := &transport.Call{Done: transport.Func(func(call *transport.Call) {
		for _, r := range batch {
			q.step(r, claim.Event{Kind: claim.CopyEnded, Outcome: transport.OutcomeOf(call.Err)}, nil)
		}
		q.heartbeatDone(call, batch, true)
	})}
	l.SetHeartbeat(call, protocol.HeartbeatUnsubscribed+protocol.HeartbeatRejoin, len(batch))
	for i, r := range batch {
		call.Args = append(call.Args, r.Token(), places[i])
	}
	return call
}

// heartbeatDone handles the reply to a heartbeat command; unsubscribed is what the command has said.
func (q *waitQueue) heartbeatDone(call *transport.Call, batch []*request, unsubscribed bool) {
	reply, err := server.DecodeHeartbeat(call, len(batch))
	if err != nil {
		q.failed(err, batch)
		return
	}
	now := q.of.k.Now()
	unknown := q.update(call, reply, batch, unsubscribed)
	var again *transport.Call // queues the unknown waiters again
	if len(unknown) > 0 {
		if !unsubscribed {
			q.checkMissed(unknown)
		}
		again = q.rejoin(unknown)
	}
	if reply.First >= 0 {
		batch[reply.First].reportPosition(reply.Rank)
	}
	q.mu.Lock()
	var out queue.Effects
	q.state.Answered(&q.of.rules, now, len(batch), len(unknown), again != nil, reply.RetryIn, reply.More, &out)
	q.setTimerLocked(&out)
	q.mu.Unlock()
	if again != nil {
		q.of.k.Transport.Send(again)
	}
}

// update applies the reply to a heartbeat command to its waiters. It returns the waiters that the server does not know.
func (q *waitQueue) update(call *transport.Call, reply protocol.HeartbeatReply, batch []*request, unsubscribed bool) (unknown []*request) {
	changed := make([]bool, len(batch))
	sent := q.of.k.Instant(call.Sent)
	for _, change := range reply.Changes {
		changed[change.Index] = true
		r := batch[change.Index]
		switch change.Code {
		case lua.Granted, lua.Held:
			if change.Code == lua.Held {
				q.checkGrant(r, unsubscribed)
			}
			q.step(r, claim.Event{Kind: claim.Admitted, Sent: sent, Fence: change.Fence, TTL: change.ExpiresIn}, nil)
		case lua.Waiting:
			q.stillQueued(r, sent, reply, change.Place)
		case lua.Unknown:
			if r.Snapshot().Pending() {
				unknown = append(unknown, r)
			}
		default:
			q.step(r, claim.Event{Kind: claim.Refused, Code: codes[change.Code]}, nil)
		}
	}
	for i, r := range batch {
		if !changed[i] {
			q.stillQueued(r, sent, reply, 0)
		}
	}
	return unknown
}

// stillQueued notes that a heartbeat found the request in the queue. place is 0 if the reply does not have it.
func (q *waitQueue) stillQueued(r *request, sent claim.Instant, reply protocol.HeartbeatReply, place int64) {
	q.step(r, claim.Event{Kind: claim.StillQueued, Sent: sent, Clock: reply.Now, Fence: reply.Seq, Place: place}, nil)
}

// checkGrant checks whether the message about a grant was lost, because a heartbeat has found the grant. It does not if the keeper did not count
// on messages, or subscribed after the waiter's last answered call was sent, and so perhaps after the grant.
func (q *waitQueue) checkGrant(r *request, unsubscribed bool) {
	since := q.of.k.Instant(q.of.k.Subscriber.SubscribedSince(q.lock.Channel))
	if since > 0 && since <= r.Snapshot().Asked() && !unsubscribed {
		q.of.k.messages.CheckGrant(r, q.lock.Channel)
	}
}

// checkMissed doubts the subscription if the server does not know a waiter that has missed no heartbeat: the server may have passed over the waiter
// because it does not see the subscription.
func (q *waitQueue) checkMissed(unknown []*request) {
	s := q.of.k
	since := s.Instant(s.Subscriber.SubscribedSince(q.lock.Channel))
	for _, r := range unknown {
		asked := r.Snapshot().Asked()
		q.mu.Lock()
		missed := q.state.Missed(&q.of.rules, s.Now(), since, asked)
		q.mu.Unlock()
		if !missed {
			continue
		}
		if s.Subscriber.Doubt(q.lock.Channel) {
			s.warnUncounted(q.lock.Channel, "the server does not see the subscription")
		}
		return
	}
}

// failed handles a heartbeat command that was not answered.
func (q *waitQueue) failed(err error, batch []*request) {
	q.mu.Lock()
	if !q.state.Failing() {
		q.backoff.Reset()
	}
	var out queue.Effects
	q.state.Failed(&q.of.rules, q.of.k.Now(), transport.Retryable(err), q.of.k.Config.Retry.Next(&q.backoff), &out)
	q.setTimerLocked(&out)
	q.mu.Unlock()
	if !out.GiveUp {
		return
	}
	for _, r := range batch {
		q.step(r, claim.Event{Kind: claim.GaveUp}, err)
	}
}
