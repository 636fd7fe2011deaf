package engine

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// heartbeatBatch is how many waiters go into one command: enough for one command per name and period in all but the largest
// queues, few enough that the script stays around a millisecond.
const heartbeatBatch = 1000

// waitQueue is the waiters of one name in this keeper. They beat together.
type waitQueue struct {
	lock   *Lock // any lock of the name: its keys and scripts are what counts
	health *ServerHealth
	timer  timers.Timer

	mu           sync.Mutex // guards what follows
	requests     map[*request]struct{}
	inFlight     int                         // beats under way
	sent         time.Time                   // when the last one left
	due          time.Time                   // when all beat next; who beats before that is the first of them, to ask
	again        bool                        // beat once more when it is back
	backoff      *backoff.ExponentialBackOff // nil while beats are answered
	failingSince time.Time                   // since when they are not
	receivedAt   time.Time                   // when a message last told one of them to ask
}

// enqueue puts a waiter that has just been told to wait into its name's line, and sets the clock.
func (l *Lock) enqueue(w *request, a acquireReply) {
	e := l.e
	e.mu.Lock()
	n := e.queues[l.key(keyQueue)]
	if n == nil {
		n = &waitQueue{lock: l, health: w.known(), requests: map[*request]struct{}{}, due: time.Now().Add(e.cfg.HeartbeatInterval)}
		n.timer.Fire = n.heartbeat
		e.queues[l.key(keyQueue)] = n
		e.subscriber.Retain(l.channel)
	}
	n.mu.Lock()
	n.requests[w] = struct{}{}
	n.mu.Unlock()
	due := w.due
	w.mu.Lock()
	w.health = n.health
	n.health.Answered(w.askedAt)
	w.mu.Unlock()
	e.mu.Unlock()
	if w.hasEnded() { // meanwhile, and its end did not find it in the line
		e.leaveQueue(w)
		return
	}
	e.timers.SetIfSooner(&n.timer, n.next(time.Now(), a.retryIn, a.more))
	if !due.IsZero() {
		n.heartbeatAt(due)
	}
	w.setPosition(a.rank)
}

// setPosition tells of the waiter's position, if it is another than before.
func (w *request) setPosition(rank int) {
	e := w.lock.e
	if e.cfg.Observe == nil {
		return
	}
	w.mu.Lock()
	moved := w.outcome == undecided && (!w.queued || w.rank != rank)
	w.queued, w.rank = true, rank
	w.mu.Unlock()
	if moved {
		ev := w.lock.event(Queued)
		ev.Token, ev.Position = w.token, rank
		e.observe(ev)
	}
}

// next is when to beat: at the period, or when the server said that asking may be worth while.
func (n *waitQueue) next(now time.Time, ask int64, more bool) time.Time {
	switch {
	case more:
		return now
	case ask > 0 && duration(ask) < n.lock.e.cfg.HeartbeatInterval:
		return now.Add(duration(ask) + time.Millisecond) // leases end within the millisecond that was named
	}
	return now.Add(n.lock.e.cfg.HeartbeatInterval)
}

// leaveQueue takes the waiter out of its line, and ends a line that is empty.
func (e *Engine) leaveQueue(w *request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := w.lock.key(keyQueue)
	n := e.queues[key]
	if n == nil {
		return
	}
	n.mu.Lock()
	delete(n.requests, w)
	empty := len(n.requests) == 0
	n.mu.Unlock()
	if empty {
		delete(e.queues, key)
		e.timers.Cancel(&n.timer)
		e.subscriber.Release(n.lock.channel)
	}
}

// heartbeatAt makes the first of the waiter's line ask at that time at the latest, as a message has said.
func (e *Engine) heartbeatAt(w *request, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := e.queueLocked(w, at); n != nil {
		n.mu.Lock()
		n.receivedAt = time.Now()
		n.mu.Unlock()
		e.timers.SetIfSooner(&n.timer, at)
	}
}

// queueWasEmpty notes that nobody stood in line for a release that left at that time. If somebody here had been told to wait
// before that, then the server has lost the line, as it does when its clock is set ahead; and perhaps nobody else asks
// before the next heartbeat.
func (l *Lock) queueWasEmpty(sent time.Time) {
	e := l.e
	e.mu.Lock()
	n := e.queues[l.key(keyQueue)]
	e.mu.Unlock()
	if n == nil {
		return
	}
	n.mu.Lock()
	waiters := slices.Collect(maps.Keys(n.requests))
	n.mu.Unlock()
	for _, w := range waiters {
		if w.waitedAt(sent) {
			e.heartbeatBy(w, time.Now())
			return
		}
	}
}

// heartbeatBy makes all of the waiter's line beat at that time at the latest.
func (e *Engine) heartbeatBy(w *request, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := e.queueLocked(w, at); n != nil {
		n.heartbeatAt(at)
	}
}

// queueLocked is the line in which the waiter stands. If it does not yet, because a message has overtaken the answer that puts
// it there, it will beat then, at that time at the latest.
func (e *Engine) queueLocked(w *request, at time.Time) *waitQueue {
	if n := e.queues[w.lock.key(keyQueue)]; n != nil {
		n.mu.Lock()
		_, stands := n.requests[w]
		n.mu.Unlock()
		if stands {
			return n
		}
	}
	if w.due.IsZero() || at.Before(w.due) {
		w.due = at
	}
	return nil
}

func (n *waitQueue) heartbeatAt(at time.Time) {
	n.mu.Lock()
	if n.due.After(at) {
		n.due = at
	}
	n.mu.Unlock()
	n.lock.e.timers.SetIfSooner(&n.timer, at)
}

// heartbeat is called by the clock: it sends the heartbeats of all who wait, or, before those are due, asks for the first.
func (n *waitQueue) heartbeat(now time.Time) {
	e := n.lock.e
	period := e.cfg.HeartbeatInterval
	n.mu.Lock()
	if len(n.requests) == 0 {
		n.mu.Unlock()
		return
	}
	if n.inFlight > 0 && now.Sub(n.sent) < 2*period {
		// The last one is still under way. What made this one due may have come after it ran.
		n.again = true
		n.mu.Unlock()
		e.timers.Set(&n.timer, now.Add(period))
		return
	}
	n.sent, n.again = now, false
	all := slices.Collect(maps.Keys(n.requests))
	parts := 1
	early := now.Before(n.due)
	if !early {
		n.due = now.Add(period)
		parts = (len(all) + heartbeatBatch - 1) / heartbeatBatch
	}
	due := n.due
	n.inFlight += parts
	n.mu.Unlock()
	e.timers.Set(&n.timer, due)
	if early {
		all = []*request{first(all)}
	}
	for part := range slices.Chunk(all, heartbeatBatch) {
		n.send(part)
	}
}

// first is the waiter that stands before the others.
func first(all []*request) (first *request) {
	least := int64(0)
	for _, w := range all {
		w.mu.Lock()
		place := w.place
		w.mu.Unlock()
		if first == nil || place < least {
			first, least = w, place
		}
	}
	return first
}

// send sends one beat for some waiters.
func (n *waitQueue) send(part []*request) {
	l := n.lock
	sent := time.Now()
	n.health.Sent(sent)
	call := l.heartbeatCall(0, len(part), func(call *transport.Call) { n.heartbeatDone(call, part, sent) })
	for _, w := range part {
		call.Args = append(call.Args, w.token)
	}
	l.e.transport.Send(call)
}

// rejoin makes waiters stand in line again whom the server does not know: they were passed over while their
// connection was gone, or the server lost its data. Those who have not missed a heartbeat keep their place.
func (n *waitQueue) rejoin(part []*request) {
	l := n.lock
	now := time.Now()
	call := l.heartbeatCall(1, 2*len(part), func(call *transport.Call) {
		for _, w := range part {
			w.copyDone(transport.OutcomeOf(call.Err))
		}
		n.heartbeatDone(call, part, now)
	})
	n.health.Sent(now)
	for _, w := range part {
		w.copySent(now)
		w.mu.Lock()
		place := w.place
		if now.Sub(w.askedAt) > l.e.cfg.HeartbeatTimeout {
			place = 0
		}
		w.mu.Unlock()
		call.Args = append(call.Args, w.token, place)
	}
	n.mu.Lock()
	n.inFlight++
	n.mu.Unlock()
	l.e.transport.Send(call)
}

// heartbeatCall prepares a beat, to which the tokens are to be appended.
func (l *Lock) heartbeatCall(back, room int, done func(*transport.Call)) *transport.Call {
	call := l.call(l.spec.Scripts.Heartbeat, 4, 6+room, done)
	call.Urgent = true
	call.Args = lua.HeartbeatArgs(call.Args, l.args.metadataTTL, l.args.heartbeatTimeout, l.args.channelPrefix, l.args.sharded, back, l.args.extra)
	return call
}

// heartbeatDone deals with the answer to a beat.
func (n *waitQueue) heartbeatDone(call *transport.Call, part []*request, sent time.Time) {
	e := n.lock.e
	p, err := parseHeartbeat(call, len(part))
	if err != nil {
		n.health.Failed(sent, err)
		n.failed(err, part)
		return
	}
	now := time.Now()
	n.mu.Lock()
	n.inFlight--
	again := n.again
	n.mu.Unlock()

	var back []*request
	waits := make([]bool, len(part))
	for i := range waits {
		waits[i] = true
	}
	for _, x := range p.changes {
		w := part[x.index]
		switch x.code {
		case lua.Granted, lua.Held:
			waits[x.index] = false
			if x.code == lua.Held && !w.noPush {
				e.expectWakeup(w)
			}
			if w.grant(x.a, call.Sent, x.b-p.now, true) == ErrTooLate {
				n.heartbeatAt(call.Sent.Add(duration(x.b-p.now) + time.Millisecond)) // when the lease is over
			}
		case lua.Waiting:
			w.stillWaiting(call.Sent, p.seq, x.a)
		case lua.Unknown:
			waits[x.index] = false
			if !w.hasEnded() {
				back = append(back, w)
			}
		case lua.Tombstoned:
			waits[x.index] = false
			w.leave(n.lock.fail(ErrNotAcquired, errTombstoned))
		case lua.Refused:
			waits[x.index] = false
			w.leave(n.lock.fail(ErrNotAcquired))
		case lua.Conflict:
			waits[x.index] = false
			w.leave(n.lock.fail(ErrConflict))
		case lua.AboveLimit:
			waits[x.index] = false
			w.leave(n.lock.fail(ErrAboveLimit))
		}
	}
	if len(back) == 0 { // else they are to come back first, which takes a server that can be written to
		n.mu.Lock()
		n.backoff = nil
		n.mu.Unlock()
		n.health.Answered(sent)
	} else {
		n.health.Dropped(sent)
	}
	n.checkMissed(back)
	for i, w := range part {
		if waits[i] {
			w.stillWaiting(call.Sent, p.seq, 0)
		}
	}
	if len(back) > 0 {
		n.rejoin(back)
	}
	n.heartbeatOthers(part, back)
	if p.first >= 0 {
		part[p.first].setPosition(p.rank)
	}
	e.timers.SetIfSooner(&n.timer, n.next(now, p.retryIn, p.more || again))
}

// heartbeatOthers makes all beat now if only some of them have, whom the server did not know: the others it may not know either.
func (n *waitQueue) heartbeatOthers(part, unknown []*request) {
	n.mu.Lock()
	some := len(part) < min(len(n.requests), heartbeatBatch)
	n.mu.Unlock()
	if some && len(unknown) > 0 {
		n.heartbeatAt(time.Now())
	}
}

// checkMissed looks at waiters that the server did not know. If the keeper was listening all the time since their last
// heartbeat, and was told nothing, then it listens not where the server speaks: the connection is replaced.
func (n *waitQueue) checkMissed(back []*request) {
	if len(back) == 0 {
		return
	}
	e := n.lock.e
	since := e.subscriber.SubscribedSince(n.lock.channel)
	n.mu.Lock()
	heard := n.receivedAt
	n.mu.Unlock()
	for _, w := range back {
		w.mu.Lock()
		asked := w.askedAt
		w.mu.Unlock()
		if !since.IsZero() && since.Before(asked) && !heard.After(asked) && !w.noPush {
			e.subscriber.Replace(n.lock.channel)
			return
		}
	}
}

// failed deals with a beat that was not answered.
func (n *waitQueue) failed(err error, part []*request) {
	e := n.lock.e
	now := time.Now()
	n.mu.Lock()
	n.inFlight--
	if n.backoff == nil {
		n.backoff = e.cfg.Retry.NewBackoff()
		n.failingSince = now
	}
	n.due = now
	hopeless := !transport.Retryable(err) || e.cfg.Retry.Exhausted(n.failingSince, now)
	pause := min(n.backoff.NextBackOff(), e.cfg.HeartbeatInterval)
	n.mu.Unlock()
	if hopeless {
		for _, w := range part {
			w.leave(n.lock.fail(err))
		}
		return
	}
	e.timers.SetIfSooner(&n.timer, now.Add(pause))
}
