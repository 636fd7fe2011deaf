package explore

import (
	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/lua"
)

type stepKind uint8

const (
	stepBegin  stepKind = iota
	stepRun             // a call runs at the server, and its reply arrives at once
	stepSlow            // it runs, and the reply arrives later
	stepAnswer          // such a reply arrives
	stepFail            // no reply comes, and the call may run later
	stepRunLate
	stepMessage
	stepLoseMessage
	stepCancel
	stepRelease
	stepTimer
	stepExtend
	stepDowngrade
	stepBreak
	stepWhy // the server says who has broken a request or a lease
	stepClose
	stepHeartbeat
	stepCrash
	stepFreeze
	stepUnsubscribe
	stepSubscribe
	stepTick
)

// callKind says which of the calls that are under way a step is about.
type callKind uint8

const (
	ofAsk callKind = iota
	ofChange
	ofExtend
	ofDowngrade
	ofHeartbeat
)

// step is a transition: its kind, and the request, the keeper or the position that it is about.
type step struct {
	kind stepKind
	of   callKind
	at   uint8
}

// slot returns the call that a step is about.
func (w *world) slot(s step) *slot {
	switch s.of {
	case ofAsk:
		return &w.requests[s.at].ask
	case ofChange:
		return &w.requests[s.at].change
	case ofExtend:
		return &w.requests[s.at].extend
	case ofDowngrade:
		return &w.requests[s.at].downgrade
	}
	return &w.keepers[s.at].waiters.heartbeat
}

// steps calls visit for each step that is possible in a world.
func (m *model) steps(w *world, visit func(step)) {
	try := func(kind stepKind, at int) { visit(step{kind: kind, at: uint8(at)}) }
	for r := range m.requests {
		q, k := &w.requests[r], m.keeperOf[r]
		if m.alive(w, r) {
			for of := ofAsk; of <= ofDowngrade; of++ {
				m.calls(w, step{of: of, at: uint8(r)}, visit)
			}
		}
		if w.breaks > 0 && !q.broken && m.known(w, r) {
			try(stepBreak, r)
		}
		if !m.alive(w, r) {
			continue
		}
		// Requests of a keeper that differ in nothing begin in their order.
		inOrder := r == 0 || m.keeperOf[r-1] != k || m.flags[r-1] != m.flags[r] || w.requests[r-1].phase != idle
		if q.phase == idle && inOrder && w.keepers[k].state == running && m.mayConvert(w, r) {
			try(stepBegin, r)
		}
		if q.phase != begun {
			continue
		}
		holds, lost := q.claim.Active(), q.claim.State() == claim.Lost
		if w.cancels > 0 && (q.claim.Pending() || holds || m.hasUpgraded(w, r)) {
			try(stepCancel, r)
		}
		if m.timerDue(w, r) {
			try(stepTimer, r)
		}
		if q.asksWhy {
			try(stepWhy, r)
		}
		if w.downgrades > 0 && m.mayDowngrade(w, r) {
			try(stepDowngrade, r)
		}
		// Without faults, who converts a lease waits for that.
		if (holds && q.change.call == 0 || lost) && !(w.calm && m.converts(w, r)) {
			try(stepRelease, r)
		}
		if w.extends > 0 && holds && q.extend.call == 0 {
			try(stepExtend, r)
		}
	}
	for k := range m.keepers() {
		p := &w.keepers[k]
		if p.alive() {
			m.calls(w, step{of: ofHeartbeat, at: uint8(k)}, visit)
		}
		if p.state != running {
			continue
		}
		if w.closes > 0 {
			try(stepClose, k)
		}
		if m.beatDue(w, k) {
			try(stepHeartbeat, k)
		}
		if w.crashes > 0 {
			try(stepCrash, k)
			try(stepFreeze, k)
		}
		switch {
		case !p.subscribed:
			try(stepSubscribe, k)
		case w.faults > 0:
			try(stepUnsubscribe, k)
		}
	}
	for i, id := range w.late {
		if id != 0 && (i == 0 || w.late[i-1] != id) {
			try(stepRunLate, i)
		}
	}
	for i, id := range w.messages {
		if id != 0 && (i == 0 || w.messages[i-1] != id) {
			if w.keepers[m.addressee(id)].state == running {
				try(stepMessage, i)
				if w.faults > 0 {
					try(stepLoseMessage, i)
				}
			}
		}
	}
	if w.tick < m.ticks {
		try(stepTick, 0)
	}
}

// calls visits what may happen to a call of a live keeper: it runs and is answered, at once or later, or there is no answer, and it may
// run later as a late copy. A call that ran and whose reply was lost is one whose late copy runs at once.
func (m *model) calls(w *world, s step, visit func(step)) {
	try := func(kind stepKind) { visit(step{kind, s.of, s.at}) }
	c := w.slot(s)
	switch {
	case c.call == 0:
		return
	case c.reply != 0:
		try(stepAnswer)
		return
	}
	try(stepRun)
	if x := m.srv.calls[c.call].script; w.slow > 0 && x != release && x != fastRelease && x != handOn {
		try(stepSlow)
	}
	if w.faults > 0 && w.late[len(w.late)-1] == 0 {
		try(stepFail)
	}
}

func (m *model) addressee(id int32) int {
	return int(m.srv.messages[id].channel[len(wakePrefix)] - 'a')
}

func (m *model) apply(w *world, s step) {
	i := int(s.at)
	switch s.kind {
	case stepBegin:
		q := &w.requests[i]
		q.phase, q.claim = begun, claim.New(m.mode(i), m.origin[i] > 0, false)
		q.claim.SetSince(instant(0)) // which makes no difference without a MaxLifetime
		m.step(w, i, claim.Event{Kind: claim.Called})
	case stepRun:
		m.run(w, w.slot(s))
		m.answer(w, s)
	case stepSlow:
		w.slow--
		m.run(w, w.slot(s))
	case stepAnswer:
		m.answer(w, s)
	case stepFail:
		w.faults--
		m.fail(w, s)
	case stepExtend:
		w.extends--
		m.step(w, i, claim.Event{Kind: claim.ExtendBegan, TTL: int64(m.extendTo)})
		if q := &w.requests[i]; q.claim.Active() {
			q.extend = slot{call: m.srv.call(call{script: renew, requests: 1 << i, ttl: m.extendTo}), sent: w.tick}
		}
	case stepDowngrade:
		w.downgrades--
		m.downgrade(w, i)
	case stepBreak:
		w.breaks--
		s := slot{call: m.srv.call(call{script: breaking, requests: 1 << i})}
		m.run(w, &s)
		w.requests[i].broken = m.srv.replies[s.reply][0] != lua.Refused
	case stepWhy:
		q := &w.requests[i]
		kind := claim.NotBroken
		if q.asksWhy = false; q.broken {
			kind = claim.Broken
		}
		m.step(w, i, claim.Event{Kind: kind})
	case stepClose:
		w.closes--
		w.keepers[i].state = closed
		for r := range m.requests {
			if m.keeperOf[r] == i {
				m.step(w, r, claim.Event{Kind: claim.Closed})
			}
		}
		w.keepers[i].subscribed, w.keepers[i].since = false, 0
		m.dropMessages(w, i)
	case stepRunLate:
		m.run(w, &slot{call: take(w.late[:], i)})
	case stepMessage:
		m.receive(w, take(w.messages[:], i))
	case stepLoseMessage:
		w.faults--
		take(w.messages[:], i)
	case stepCancel:
		w.cancels--
		if w.requests[i].claim.Pending() {
			m.step(w, i, claim.Event{Kind: claim.Cancelled})
		} else { // at the moment of the grant
			m.giveUp(w, i)
			m.step(w, i, claim.Event{Kind: claim.Released, Unused: true})
		}
	case stepRelease:
		m.step(w, i, claim.Event{Kind: claim.Released})
	case stepTimer:
		m.step(w, i, claim.Event{Kind: claim.Timer})
	case stepHeartbeat:
		m.beat(w, i)
	case stepCrash, stepFreeze:
		w.crashes--
		m.stop(w, i, s.kind == stepCrash)
	case stepUnsubscribe:
		w.faults--
		m.dropMessages(w, i)
		w.keepers[i].subscribed, w.keepers[i].since = false, 0
	case stepSubscribe:
		if m.queued(w, i) != 0 {
			w.allBy(i, w.instant())
		}
		w.keepers[i].subscribed, w.keepers[i].since = true, w.instant()
	case stepTick:
		w.tick++
	}
}

func (m *model) fail(w *world, s step) {
	c, r := w.slot(s), int(s.at)
	id := c.call
	called := m.srv.calls[id]
	m.leaveLate(w, c)
	switch s.of {
	case ofAsk:
		m.step(w, r, claim.Event{Kind: claim.AskFailed, Outcome: claim.InDoubt, Retryable: true})
	case ofChange:
		kind := claim.RenewFailed
		if !called.script.renews() {
			kind = claim.ReleaseFailed
		}
		m.step(w, r, claim.Event{Kind: kind, Outcome: claim.InDoubt, Retryable: true, Pause: ms(1)})
	case ofExtend:
		m.step(w, r, claim.Event{Kind: claim.Extended, TTL: int64(m.extendTo), Outcome: claim.InDoubt})
	case ofDowngrade:
		m.downgradeFailed(w, r, id)
	case ofHeartbeat:
		m.heartbeatFailed(w, int(s.at), called)
	}
}

func (m *model) answer(w *world, s step) {
	switch s.of {
	case ofAsk:
		m.answerAsk(w, int(s.at))
	case ofChange:
		m.answerChange(w, int(s.at))
	case ofExtend:
		m.answerExtend(w, int(s.at))
	case ofDowngrade:
		m.answerDowngrade(w, int(s.at))
	case ofHeartbeat:
		m.answerHeartbeat(w, int(s.at))
	}
}
