package explore

import (
	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/queue"
	"github.com/lockkeeper/lockkeeper/lua"
)

// This file takes the place of the driver: it does what claims say, and tells them what has happened.

// timerDue reports whether the timer of a request may fire: a renewal only within the bounds, and if none is under way.
func (m *model) timerDue(w *world, r int) bool {
	q := &w.requests[r]
	if q.timer == 0 || w.instant() < q.timer {
		return false
	}
	c := q.claim
	var out claim.Effects
	c.Step(&m.terms, w.instant(), &claim.Event{Kind: claim.Timer}, &out)
	return out.RenewFor == 0 || q.change.call == 0 && w.renewals > 0
}

// step tells the claim of a request of an event, and does what it says. Pauses between attempts take no time.
func (m *model) step(w *world, r int, e claim.Event) (out claim.Effects) {
	q, k := &w.requests[r], m.keeperOf[r]
	if q.phase != begun {
		return out
	}
	state := q.claim.State()
	q.claim.Step(&m.terms, w.instant(), &e, &out)
	w.note(r, state, e.Kind, &out)
	if out.StopTimer {
		q.timer = 0
	}
	if out.Timer > 0 {
		q.timer = out.Timer
	}
	if out.Ask {
		c := call{script: acquire, requests: 1 << r, try: m.tries[r], uncounted: !m.tries[r] && w.keepers[k].uncounted()}
		if m.set.Fast.Acquire != nil && !out.AskGeneral && m.origin[r] == 0 {
			c = call{script: fastAcquire, requests: 1 << r}
		}
		q.ask = slot{call: m.srv.call(c), sent: w.tick}
	}
	if out.Deliver && q.claim.Reason() != claim.NoReason && !m.mayBeRejected(q, r) {
		q.rejection = q.claim.Reason()
	}
	if out.Queue {
		m.join(w, r, m.retryIn, e.More)
	}
	if out.Deliver {
		m.leave(w, r)
	}
	if q.queued && out.HeartbeatBy > 0 {
		w.allBy(k, out.HeartbeatBy)
	}
	if q.queued && out.FirstBeatBy > 0 {
		w.tell(k, func(q *queue.Queue, effects *queue.Effects) { q.Notified(w.instant(), out.FirstBeatBy, effects) })
	}
	if out.RenewFor > 0 {
		w.renewals--
		c := call{script: fastRenew, requests: 1 << r, ttl: int16(out.RenewFor)}
		if out.Metadata {
			c.script = renew
		}
		q.change = slot{call: m.srv.call(c), sent: w.tick}
	}
	if out.End {
		m.leaveLate(w, &q.extend)
		m.leaveLate(w, &q.downgrade)
	}
	if out.Release {
		m.release(w, r)
	}
	m.convert(w, r, &out)
	if out.Finished {
		m.finish(w, r, e.Kind != claim.ReleaseFailed)
		return out
	}
	switch {
	case out.Pause, e.Kind == claim.ReleaseFailed:
		m.step(w, r, claim.Event{Kind: claim.Timer})
	case out.AskBreaker:
		q.asksWhy = true
	}
	return out
}

// mode returns what becomes of a request that cannot be granted at once.
func (m *model) mode(r int) claim.Mode {
	if m.tries[r] {
		return claim.Try
	}
	return claim.Wait
}

// mayBeRejected reports whether a request may end as it has, without a lease.
func (m *model) mayBeRejected(q *request, r int) bool {
	switch q.claim.Reason() {
	case claim.ByCaller, claim.ByClose:
		return true
	case claim.ByBreak, claim.ByTombstone:
		return q.broken
	case claim.ByConflict:
		return m.conflicts(r)
	}
	return m.tries[r] || m.origin[r] > 0
}

// conflicts reports whether requests make two leases write.
func (m *model) conflicts(r int) bool {
	for _, o := range m.origin {
		if o > 0 && m.origin[r] > 0 && o != m.origin[r] {
			return true
		}
	}
	return false
}

func (m *model) release(w *world, r int) {
	q := &w.requests[r]
	m.leaveLate(w, &q.ask)
	if c := q.change.call; c != 0 && m.srv.calls[c].script.renews() {
		m.leaveLate(w, &q.change)
		m.step(w, r, claim.Event{Kind: claim.RenewFailed, Outcome: claim.InDoubt})
	}
	tombstone, unused, _, _ := q.claim.Cleanup()
	c := call{script: release, requests: 1 << r, tombstone: tombstone, unused: unused}
	switch {
	case unused, tombstone:
	case !q.claim.NeedsGeneral() && q.claim.Place() == 0: // nobody waited when it was granted
		c.script = fastRelease
	case !q.handedOn:
		c.script, q.handedOn = handOn, true
	}
	q.change = slot{call: m.srv.call(c), sent: w.tick}
}

// finish forgets a request of which nothing is left to be done; known says that the server has said so, or was never asked.
func (m *model) finish(w *world, r int, known bool) {
	q := &w.requests[r]
	m.leaveLate(w, &q.ask)
	m.leaveLate(w, &q.change)
	m.endUpgrade(w, r, known)
	was := *q
	*q = request{phase: over, rejection: was.rejection, broken: was.broken}
	if !known {
		q.phase = ended
	}
}

// codes are the codes of acquire's and heartbeat's replies, as claims know them.
var codes = map[int64]claim.Code{
	lua.Granted: claim.Granted, lua.Waiting: claim.Queued, lua.Refused: claim.Denied, lua.Tombstoned: claim.Tombstoned, lua.Conflict: claim.Conflict,
}

// parsed is the result of a parser that understands whatever the scripts reply.
func parsed[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

func (m *model) answerAsk(w *world, r int) {
	q := &w.requests[r]
	s := q.ask
	q.ask = slot{}
	fast, parse := m.srv.calls[s.call].script == fastAcquire, protocol.ParseAcquireReply
	if fast {
		parse = protocol.ParseFastAcquireReply
	}
	a := parsed(parse(m.srv.replies[s.reply]))
	e := claim.Event{
		Kind: claim.Replied, Code: codes[a.Code], Fast: fast, More: a.More, Sent: instant(s.sent),
		Fence: a.Fence, Clock: a.Now, Place: a.Place,
	}
	switch {
	case a.Undecided:
		e.Code = claim.Undecided
	case a.Code == lua.Waiting:
		e.Fence, m.retryIn = a.Seq, a.RetryIn
	}
	m.step(w, r, e)
}

func (m *model) answerChange(w *world, r int) {
	q := &w.requests[r]
	s := q.change
	q.change = slot{}
	c := m.srv.calls[s.call]
	if !c.script.renews() {
		parse := protocol.ParseReleaseReply
		if c.script == fastRelease || c.script == handOn {
			parse = protocol.ParseFastReleaseReply
		}
		a := parsed(parse(m.srv.replies[s.reply]))
		e := claim.Event{Kind: claim.ReleaseReplied, Code: claim.Granted, Fast: a.Undecided, QueueEmpty: a.QueueEmpty}
		if a.Code == lua.Refused {
			e.Code = claim.Denied
		}
		m.step(w, r, e)
		if a.QueueEmpty {
			m.wasEmpty(w, m.keeperOf[r], instant(s.sent))
		}
		return
	}
	parse := protocol.ParseRenewReply
	if c.script == fastRenew {
		parse = protocol.ParseFastRenewReply
	}
	a := parsed(parse(m.srv.replies[s.reply]))
	e := claim.Event{Kind: claim.Renewed, Code: claim.Denied, Sent: instant(s.sent), TTL: int64(c.ttl), Fence: a.Fence}
	if a.Held {
		e.Code = claim.Granted
	}
	m.step(w, r, e)
}

func (m *model) answerExtend(w *world, r int) {
	q := &w.requests[r]
	s := q.extend
	q.extend = slot{}
	a := parsed(protocol.ParseRenewReply(m.srv.replies[s.reply]))
	e := claim.Event{Kind: claim.Extended, Code: claim.Denied, Sent: instant(s.sent), TTL: int64(m.extendTo)}
	if a.Held {
		e.Code = claim.Granted
	}
	m.step(w, r, e)
}

func (m *model) answerHeartbeat(w *world, k int) {
	p := &w.keepers[k].waiters
	s := p.heartbeat
	c := m.srv.calls[s.call]
	list := c.list()
	a := parsed(protocol.ParseHeartbeatReply(m.srv.replies[s.reply], len(list)))
	if c.script == rejoin {
		for _, r := range list {
			m.step(w, r, claim.Event{Kind: claim.CopyEnded, Outcome: claim.Answered})
		}
	}
	events := map[int]claim.Event{}
	for _, r := range list {
		events[r] = claim.Event{Kind: claim.StillQueued, Sent: instant(s.sent), Fence: a.Seq, Clock: a.Now}
	}
	for _, change := range a.Changes {
		e := events[list[change.Index]]
		switch change.Code {
		case lua.Granted, lua.Held:
			e.Kind, e.Fence, e.TTL = claim.Admitted, change.Fence, change.ExpiresIn
		case lua.Waiting:
			e.Place = change.Place
		case lua.Unknown:
			e = claim.Event{Kind: claim.Rejoining}
		default:
			e = claim.Event{Kind: claim.Refused, Code: codes[change.Code]}
		}
		events[list[change.Index]] = e
	}
	unknown, again := 0, call{script: rejoin}
	missed := false
	for _, r := range list {
		q, e := &w.requests[r], events[r]
		if e.Kind != claim.Rejoining {
			m.step(w, r, e)
			continue
		}
		if !q.queued { // it has ended
			continue
		}
		unknown++
		missed = missed || !c.uncounted && p.queue.Missed(&rules, w.instant(), w.keepers[k].since, q.claim.Asked())
		var out claim.Effects
		state := q.claim.State()
		q.claim.Step(&m.terms, w.instant(), &e, &out)
		w.note(r, state, e.Kind, &out)
		if out.Joins {
			again.requests |= 1 << r
			again.places[r] = out.Place
		}
	}
	if missed {
		w.keepers[k].doubts = true
	}
	if !p.dropped {
		var out queue.Effects
		p.queue.Answered(&rules, w.instant(), len(list), unknown, again.requests != 0, a.RetryIn, a.More, &out)
	}
	p.heartbeat, p.dropped = slot{}, false
	if again.requests != 0 {
		p.heartbeat = slot{call: m.srv.call(again), sent: w.tick}
	}
}

func (m *model) receive(w *world, id int32) {
	for _, x := range parsed(protocol.ParseMessage(m.srv.messages[id].text)) {
		r := serial(x)
		switch {
		case x.Broken != nil:
			m.step(w, r, claim.Event{Kind: claim.Broken})
		case x.Fence > 0:
			m.step(w, r, claim.Event{Kind: claim.Woken, Fence: x.Fence})
		default:
			m.step(w, r, claim.Event{Kind: claim.RetryAt, At: w.instant().Add(ms(x.RetryIn + 1))})
		}
	}
}
