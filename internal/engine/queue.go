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

// perBeat is how many waiters go into one command: enough for one command per name and period in all but the largest
// queues, few enough that the script stays around a millisecond.
const perBeat = 1000

// line is the waiters of one name in this keeper. They beat together.
type line struct {
	lock    *Lock // any lock of the name: its keys and scripts are what counts
	contact *contact
	alarm   timers.Alarm

	mu      sync.Mutex // guards what follows
	waiters map[*waiter]struct{}
	onWay   int                         // beats under way
	sent    time.Time                   // when the last one left
	due     time.Time                   // when all beat next; who beats before that is the first of them, to ask
	again   bool                        // beat once more when it is back
	pauses  *backoff.ExponentialBackOff // nil while beats are answered
	failing time.Time                   // since when they are not
	heard   time.Time                   // when a message last told one of them to ask
}

// stand puts a waiter that has just been told to wait into its name's line, and sets the clock.
func (l *Lock) stand(w *waiter, a answer) {
	e := l.e
	e.mu.Lock()
	n := e.lines[l.key(ofQueue)]
	if n == nil {
		n = &line{lock: l, contact: w.known(), waiters: map[*waiter]struct{}{}, due: time.Now().Add(e.cfg.Period)}
		n.alarm.Ring = n.beat
		e.lines[l.key(ofQueue)] = n
		e.ear.Use(l.channel)
	}
	n.mu.Lock()
	n.waiters[w] = struct{}{}
	n.mu.Unlock()
	due := w.due
	w.mu.Lock()
	w.contact = n.contact
	n.contact.answer(w.asked)
	w.mu.Unlock()
	e.mu.Unlock()
	if w.hasEnded() { // meanwhile, and its end did not find it in the line
		e.quitLine(w)
		return
	}
	e.clock.Sooner(&n.alarm, n.next(time.Now(), a.ask, a.more))
	if !due.IsZero() {
		n.beatAt(due)
	}
	w.stands(a.rank)
}

// stands tells of the waiter's position, if it is another than before.
func (w *waiter) stands(rank int) {
	e := w.lock.e
	if e.cfg.Observe == nil {
		return
	}
	w.mu.Lock()
	moved := !w.ended && (!w.stood || w.rank != rank)
	w.stood, w.rank = true, rank
	w.mu.Unlock()
	if moved {
		ev := w.lock.event(Waiting)
		ev.Token, ev.Position = w.token, rank
		e.observe(ev)
	}
}

// next is when to beat: at the period, or when the server said that asking may be worth while.
func (n *line) next(now time.Time, ask int64, more bool) time.Time {
	switch {
	case more:
		return now
	case ask > 0 && duration(ask) < n.lock.e.cfg.Period:
		return now.Add(duration(ask) + time.Millisecond) // leases end within the millisecond that was named
	}
	return now.Add(n.lock.e.cfg.Period)
}

// quitLine takes the waiter out of its line, and ends a line that is empty.
func (e *Engine) quitLine(w *waiter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := w.lock.key(ofQueue)
	n := e.lines[key]
	if n == nil {
		return
	}
	n.mu.Lock()
	delete(n.waiters, w)
	empty := len(n.waiters) == 0
	n.mu.Unlock()
	if empty {
		delete(e.lines, key)
		e.clock.Unset(&n.alarm)
		e.ear.Drop(n.lock.channel)
	}
}

// askAt makes the first of the waiter's line ask at that time at the latest, as a message has said.
func (e *Engine) askAt(w *waiter, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := e.lineLocked(w, at); n != nil {
		n.mu.Lock()
		n.heard = time.Now()
		n.mu.Unlock()
		e.clock.Sooner(&n.alarm, at)
	}
}

// lineWasEmpty notes that nobody stood in line for a release that left at that time. If somebody here had been told to wait
// before that, then the server has lost the line, as it does when its clock is set ahead; and perhaps nobody else asks
// before the next heartbeat.
func (l *Lock) lineWasEmpty(sent time.Time) {
	e := l.e
	e.mu.Lock()
	n := e.lines[l.key(ofQueue)]
	e.mu.Unlock()
	if n == nil {
		return
	}
	n.mu.Lock()
	waiters := slices.Collect(maps.Keys(n.waiters))
	n.mu.Unlock()
	for _, w := range waiters {
		if w.waitedAt(sent) {
			e.beatAt(w, time.Now())
			return
		}
	}
}

// beatAt makes all of the waiter's line beat at that time at the latest.
func (e *Engine) beatAt(w *waiter, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := e.lineLocked(w, at); n != nil {
		n.beatAt(at)
	}
}

// lineLocked is the line in which the waiter stands. If it does not yet, because a message has overtaken the answer that puts
// it there, it will beat then, at that time at the latest.
func (e *Engine) lineLocked(w *waiter, at time.Time) *line {
	if n := e.lines[w.lock.key(ofQueue)]; n != nil {
		n.mu.Lock()
		_, stands := n.waiters[w]
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

func (n *line) beatAt(at time.Time) {
	n.mu.Lock()
	if n.due.After(at) {
		n.due = at
	}
	n.mu.Unlock()
	n.lock.e.clock.Sooner(&n.alarm, at)
}

// beat is called by the clock: it sends the heartbeats of all who wait, or, before those are due, asks for the first.
func (n *line) beat(now time.Time) {
	e := n.lock.e
	period := e.cfg.Period
	n.mu.Lock()
	if len(n.waiters) == 0 {
		n.mu.Unlock()
		return
	}
	if n.onWay > 0 && now.Sub(n.sent) < 2*period {
		// The last one is still under way. What made this one due may have come after it ran.
		n.again = true
		n.mu.Unlock()
		e.clock.Set(&n.alarm, now.Add(period))
		return
	}
	n.sent, n.again = now, false
	all := slices.Collect(maps.Keys(n.waiters))
	parts := 1
	early := now.Before(n.due)
	if !early {
		n.due = now.Add(period)
		parts = (len(all) + perBeat - 1) / perBeat
	}
	due := n.due
	n.onWay += parts
	n.mu.Unlock()
	e.clock.Set(&n.alarm, due)
	if early {
		all = []*waiter{first(all)}
	}
	for part := range slices.Chunk(all, perBeat) {
		n.send(part)
	}
}

// first is the waiter that stands before the others.
func first(all []*waiter) (first *waiter) {
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
func (n *line) send(part []*waiter) {
	l := n.lock
	sent := time.Now()
	n.contact.sent(sent)
	call := l.beatCall(0, len(part), func(call *transport.Call) { n.beaten(call, part, sent) })
	for _, w := range part {
		call.Args = append(call.Args, w.token)
	}
	l.e.courier.Send(call)
}

// comeBack makes waiters stand in line again whom the server does not know: they were passed over while their
// connection was gone, or the server lost its data. Those who have not missed a heartbeat keep their place.
func (n *line) comeBack(part []*waiter) {
	l := n.lock
	now := time.Now()
	call := l.beatCall(1, 2*len(part), func(call *transport.Call) {
		for _, w := range part {
			w.arrived(transport.FateOf(call.Err))
		}
		n.beaten(call, part, now)
	})
	n.contact.sent(now)
	for _, w := range part {
		w.leaves(now)
		w.mu.Lock()
		place := w.place
		if now.Sub(w.asked) > l.e.cfg.Life {
			place = 0
		}
		w.mu.Unlock()
		call.Args = append(call.Args, w.token, place)
	}
	n.mu.Lock()
	n.onWay++
	n.mu.Unlock()
	l.e.courier.Send(call)
}

// beatCall prepares a beat, to which the tokens are to be appended.
func (l *Lock) beatCall(back, room int, done func(*transport.Call)) *transport.Call {
	call := l.call(l.spec.Scripts.Beat, 4, 6+room, done)
	call.Urgent = true
	call.Args = lua.BeatArgs(call.Args, l.args.idle, l.args.life, l.args.wake, l.args.sharded, back, l.args.extra)
	return call
}

// beaten deals with the answer to a beat.
func (n *line) beaten(call *transport.Call, part []*waiter, sent time.Time) {
	e := n.lock.e
	p, err := parsePulse(call, len(part))
	if err != nil {
		n.contact.fail(sent, err)
		n.failed(err, part)
		return
	}
	now := time.Now()
	n.mu.Lock()
	n.onWay--
	again := n.again
	n.mu.Unlock()

	var back []*waiter
	waits := make([]bool, len(part))
	for i := range waits {
		waits[i] = true
	}
	for _, x := range p.news {
		w := part[x.index]
		switch x.code {
		case lua.Granted, lua.Held:
			waits[x.index] = false
			if x.code == lua.Held && !w.silent {
				e.expect(w)
			}
			if w.grant(x.a, call.Sent, x.b-p.now, true) == errTooLate {
				n.beatAt(call.Sent.Add(duration(x.b-p.now) + time.Millisecond)) // when the lease is over
			}
		case lua.Waiting:
			w.waits(call.Sent, p.seq, x.a)
		case lua.Unknown:
			waits[x.index] = false
			if !w.hasEnded() {
				back = append(back, w)
			}
		case lua.Buried:
			waits[x.index] = false
			w.leave(n.lock.fail(ErrNotAcquired, errBuried))
		case lua.Refused:
			waits[x.index] = false
			w.leave(n.lock.fail(ErrNotAcquired))
		case lua.Conflict:
			waits[x.index] = false
			w.leave(n.lock.fail(ErrConflict))
		case lua.Above:
			waits[x.index] = false
			w.leave(n.lock.fail(ErrAbove))
		}
	}
	if len(back) == 0 { // else they are to come back first, which takes a server that can be written to
		n.mu.Lock()
		n.pauses = nil
		n.mu.Unlock()
		n.contact.answer(sent)
	} else {
		n.contact.drop(sent)
	}
	n.missed(back)
	for i, w := range part {
		if waits[i] {
			w.waits(call.Sent, p.seq, 0)
		}
	}
	if len(back) > 0 {
		n.comeBack(back)
	}
	n.othersToo(part, back)
	if p.first >= 0 {
		part[p.first].stands(p.rank)
	}
	e.clock.Sooner(&n.alarm, n.next(now, p.ask, p.more || again))
}

// othersToo makes all beat now if only some of them have, whom the server did not know: the others it may not know either.
func (n *line) othersToo(part, unknown []*waiter) {
	n.mu.Lock()
	some := len(part) < min(len(n.waiters), perBeat)
	n.mu.Unlock()
	if some && len(unknown) > 0 {
		n.beatAt(time.Now())
	}
}

// missed looks at waiters that the server did not know. If the keeper was listening all the time since their last
// heartbeat, and was told nothing, then it listens not where the server speaks: the connection is replaced.
func (n *line) missed(back []*waiter) {
	if len(back) == 0 {
		return
	}
	e := n.lock.e
	since := e.ear.Since(n.lock.channel)
	n.mu.Lock()
	heard := n.heard
	n.mu.Unlock()
	for _, w := range back {
		w.mu.Lock()
		asked := w.asked
		w.mu.Unlock()
		if !since.IsZero() && since.Before(asked) && !heard.After(asked) && !w.silent {
			e.ear.Replace(n.lock.channel)
			return
		}
	}
}

// failed deals with a beat that was not answered.
func (n *line) failed(err error, part []*waiter) {
	e := n.lock.e
	now := time.Now()
	n.mu.Lock()
	n.onWay--
	if n.pauses == nil {
		n.pauses = e.cfg.Retry.pauses()
		n.failing = now
	}
	n.due = now
	hopeless := !transport.Passing(err) || e.cfg.Retry.exhausted(n.failing, now)
	pause := min(n.pauses.NextBackOff(), e.cfg.Period)
	n.mu.Unlock()
	if hopeless {
		for _, w := range part {
			w.leave(n.lock.fail(err))
		}
		return
	}
	e.clock.Sooner(&n.alarm, now.Add(pause))
}
