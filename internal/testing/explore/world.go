package explore

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/lua"
)

// slot is a call whose reply a keeper waits for.
type slot struct {
	call  int32 // 0: none
	reply int32 // 0: it has not run yet
	sent  int8  // tick
}

// request is a request in its keeper: its claim, which decides, and what a driver has for it.
type request struct {
	claim     claim.Claim
	phase     phase
	timer     claim.Instant // when it fires; 0: not
	believed  claim.Instant // until when a process relies on the lease that is frozen, or that has released it too soon
	ask       slot          // acquire
	change    slot          // renew, and then release
	extend    slot          // a renewal that may shorten the lease
	rejection claim.Reason  // why a request was refused, if nobody has given it up
	broken    bool          // somebody has ended it at the server
	weak      bool          // its holder relies on no more than a read lease: it is being converted, or that was given up
	retention retention
}

// phase is what is left of a request.
type phase uint8

const (
	idle  phase = iota // it has not begun
	begun              // its claim has something to do
	over               // nothing is left to do, and the server has said so
	ended              // nothing is left to do
	dead               // its process has crashed, or is frozen for good
)

// keeperState is the state of a process.
type keeperState uint8

const (
	running keeperState = iota
	closed
	crashed
	frozen // for good. A keeper that wakes again is one whose steps come late
)

// keeper is a process.
type keeper struct {
	state      keeperState
	subscribed bool  // as the server sees it
	epoch      uint8 // of the subscription; odd while there is one
	due        bool  // a heartbeat is to be sent at once
	beat       int8  // tick of the last one
	heartbeat  slot
}

// world is a state of everything. It is compared and hashed as a value.
type world struct {
	server   int32
	tick     int8
	faults   int8 // how often each of these may still happen
	slow     int8
	renewals int8
	cancels  int8
	crashes  int8
	closes   int8
	extends  int8
	breaks   int8
	entries  int8
	calm     bool // there are no more faults, and no bounds; see isServed
	keepers  [maxKeepers]keeper
	requests [maxRequests]request
	late     [4]int32 // calls that nobody waits for any more and that have not run, sorted; 0: none
	messages [6]int32 // on their way, sorted; 0: none
}

// config says what is searched.
type config struct {
	set      *lua.Set
	requests int
	keeperOf [maxRequests]int
	flags    [maxRequests]string        // of the tokens
	tries    [maxRequests]bool          // requests that do not wait
	origin   [maxRequests]int           // which lease a request replaces, counted from 1; 0: none
	extendTo int16                      // ms
	exclude  func(a, b string) bool     // whether requests with these flags exclude each other; nil: all do
	change   func(script string) string // of the scripts; nil: none

	// Bounds of all paths.
	ticks    int8
	faults   int8 // calls that are not answered, messages that are lost, subscriptions that break
	slow     int8 // replies that do not arrive before something else happens
	cancels  int8 // requests that are cancelled
	renewals int8
	crashes  int8 // processes that crash, or freeze for good
	closes   int8 // processes that close their keeper
	extends  int8
	breaks   int8 // leases and requests that somebody else ends
	entries  int8 // readers that a process admits by a lease that it retains, besides the first
}

func (c *config) tokens() (list [maxRequests]string) {
	for r := range list {
		t := protocol.Token{Keeper: keeperID(c.keeperOf[r]), Serial: strconv.Itoa(r + 1), TTL: ttl, ClaimTTL: claimTTL, Flags: c.flags[r]}
		switch c.flags[r] {
		case protocol.FlagWrite:
			t.Number = 5
		case protocol.FlagUpgrade:
			t.Number = int64(r)
		}
		list[r] = t.String()
	}
	return list
}

func keeperID(k int) string { return string(rune('a' + k)) }

func (c *config) initial() world {
	w := world{
		faults: c.faults, slow: c.slow, renewals: c.renewals, cancels: c.cancels, crashes: c.crashes, closes: c.closes, extends: c.extends,
		breaks: c.breaks, entries: c.entries,
	}
	for k := range w.keepers {
		w.keepers[k].subscribed, w.keepers[k].epoch = true, 1
	}
	return w
}

// stepKind is a kind of transition.
type stepKind uint8

const (
	stepBegin stepKind = iota
	stepRunAsk
	stepRunChange
	stepRunHeartbeat
	stepRunExtend
	stepSlowAsk
	stepSlowChange
	stepSlowHeartbeat
	stepSlowExtend
	stepAnswerAsk
	stepAnswerChange
	stepAnswerHeartbeat
	stepAnswerExtend
	stepFailAsk
	stepFailChange
	stepFailHeartbeat
	stepFailExtend
	stepRunLate
	stepMessage
	stepLoseMessage
	stepCancel
	stepRelease
	stepTimer
	stepExtend
	stepBreak
	stepClose
	stepHeartbeat
	stepCrash
	stepFreeze
	stepUnsubscribe
	stepSubscribe
	stepOpen          // the caller whose request brought a retained lease learns of it
	stepEnter         // a reader is admitted inside a process
	stepLeave         // a reader leaves
	stepTurn          // a caller learns that it does not wait any more for the one inside
	stepGiveUp        // a caller that waits for the one inside is cancelled
	stepRepeatMessage // a message arrives, and will again
	stepTick
)

// step is a transition: its kind, and the request, the keeper or the position that it is about.
type step struct {
	kind stepKind
	at   uint8
}

// model computes transitions.
type model struct {
	*config
	srv   *server
	terms claim.Rules
}

func newModel(c *config) *model {
	srv := newServer(c.set, c.tokens(), c.change)
	srv.origin = c.origin
	return &model{c, srv, claim.Rules{
		TTL: ttl, ClaimTTL: claimTTL, HeartbeatTimeout: ms(heartbeatTTL), MetadataTTL: ms(metadataTTL),
	}}
}

func (w *world) now() int64 { return int64(w.tick) * tick }

// instant returns the time of a tick for claims.
func instant(t int8) claim.Instant { return claim.Instant(ms(int64(t)*tick + tick)) }

func (w *world) instant() claim.Instant { return instant(w.tick) }

// deadline returns until when a process relies on the lease of a request; 0: it does not.
func (q *request) deadline() claim.Instant {
	if q.claim.Active() && q.phase == begun {
		return q.claim.Deadline()
	}
	return q.believed
}

// believes reports whether a process relies on the lease of a request. A frozen one does when it wakes.
func (w *world) believes(r int) bool {
	q := &w.requests[r]
	if x := &q.retention; x.is {
		return x.users > 0 && q.deadline() > 0 && (w.instant() < q.deadline() || x.late)
	}
	return w.instant() < q.deadline()
}

func (m *model) alive(w *world, r int) bool { return w.keepers[m.keeperOf[r]].alive() }

func (p *keeper) alive() bool { return p.state <= closed }

// steps calls visit for each step that is possible in a world.
func (m *model) steps(w *world, visit func(step)) {
	try := func(kind stepKind, at int) { visit(step{kind, uint8(at)}) }
	for r := range m.requests {
		q, k := &w.requests[r], m.keeperOf[r]
		m.calls(w, q.ask, m.alive(w, r), r, stepRunAsk, try)
		m.calls(w, q.change, m.alive(w, r), r, stepRunChange, try)
		m.calls(w, q.extend, m.alive(w, r), r, stepRunExtend, try)
		if w.breaks > 0 && !q.broken && m.srv.states[w.server].known&(1<<r) != 0 {
			try(stepBreak, r)
		}
		if !m.alive(w, r) {
			continue
		}
		// Requests of a keeper that differ in nothing begin in their order.
		inOrder := r == 0 || m.keeperOf[r-1] != k || m.flags[r-1] != m.flags[r] || w.requests[r-1].phase != idle
		if q.phase == idle && inOrder && w.keepers[k].state == running && (!isRetained(m.flags[r]) || w.keepers[k].subscribed) && m.mayConvert(w, r) {
			try(stepBegin, r)
		}
		if q.phase != begun {
			continue
		}
		holds, lost := q.claim.Active(), q.claim.State() == claim.Lost
		if w.cancels > 0 && (q.claim.Pending() || holds && !q.retention.is) {
			try(stepCancel, r)
		}
		if m.timerDue(w, r) {
			try(stepTimer, r)
		}
		if q.retention.is {
			m.retentionSteps(w, r, try)
			continue
		}
		// Without faults, who converts a lease waits for that.
		if (holds && q.change.call == 0 || lost) && !(w.calm && m.converts(w, r)) {
			try(stepRelease, r)
		}
		if w.extends > 0 && holds && q.extend.call == 0 && q.claim.State() != claim.Converting {
			try(stepExtend, r)
		}
	}
	for k := range w.keepers {
		p := &w.keepers[k]
		m.calls(w, p.heartbeat, p.alive(), k, stepRunHeartbeat, try)
		if p.state != running {
			continue
		}
		if w.closes > 0 {
			try(stepClose, k)
		}
		if m.beats(w, k) && (p.due || p.beat < w.tick) {
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
					if m.recalls(id) != 0 {
						try(stepRepeatMessage, i)
					}
				}
			}
		}
	}
	if w.tick < m.ticks {
		try(stepTick, 0)
	}
}

// calls visits what may happen to a call of a live keeper: it runs and is answered, at once or later, or there is no answer, and it may
// run later as a late copy. A call that ran and whose reply was lost is one whose late copy runs at once. run is its kind of running; the
// other kinds are as far from it for each kind of call.
func (m *model) calls(w *world, s slot, alive bool, at int, run stepKind, try func(stepKind, int)) {
	if s.call == 0 || !alive {
		return
	}
	if s.reply != 0 {
		try(run-stepRunAsk+stepAnswerAsk, at)
		return
	}
	try(run, at)
	if s := m.srv.calls[s.call].script; w.slow > 0 && s != release && s != releaseShort {
		try(run-stepRunAsk+stepSlowAsk, at)
	}
	if w.faults > 0 && w.late[len(w.late)-1] == 0 {
		try(run-stepRunAsk+stepFailAsk, at)
	}
}

// beats reports whether a keeper has waiters and no heartbeat under way.
func (m *model) beats(w *world, k int) bool {
	return w.keepers[k].heartbeat.call == 0 && m.waiters(w, k) != 0
}

// waiters returns the bits of a keeper's waiting requests.
func (m *model) waiters(w *world, k int) (bits uint8) {
	for r := range m.requests {
		if q := &w.requests[r]; m.keeperOf[r] == k && q.phase == begun && q.claim.State() == claim.Waiting {
			bits |= 1 << r
		}
	}
	return bits
}

// addressee returns the keeper that a message goes to.
func (m *model) addressee(id int32) int {
	return int(m.srv.messages[id].channel[len(wakePrefix)] - 'a')
}

// apply makes a transition.
func (m *model) apply(w *world, s step) {
	i := int(s.at)
	switch s.kind {
	case stepBegin:
		q := &w.requests[i]
		if o := m.origin[i]; o > 0 {
			m.step(w, o-1, claim.Event{Kind: claim.ConversionBegan})
		}
		q.phase, q.claim = begun, claim.New(m.mode(i), m.origin[i] > 0, false)
		q.claim.SetSince(instant(0)) // which makes no difference without a MaxLifetime
		if isRetained(m.flags[i]) {
			q.retention = newRetention(m.flags[i], w.keepers[m.keeperOf[i]].epoch)
		}
		if m.flags[i] == protocol.FlagWrite {
			m.yield(w, m.keeperOf[i])
		}
		m.step(w, i, claim.Event{Kind: claim.Called})
	case stepRunAsk:
		m.run(w, &w.requests[i].ask)
		m.answerAsk(w, i)
	case stepRunChange:
		m.run(w, &w.requests[i].change)
		m.answerChange(w, i)
	case stepRunHeartbeat:
		m.run(w, &w.keepers[i].heartbeat)
		m.answerHeartbeat(w, i)
	case stepSlowAsk:
		w.slow--
		m.run(w, &w.requests[i].ask)
	case stepSlowChange:
		w.slow--
		m.run(w, &w.requests[i].change)
	case stepSlowHeartbeat:
		w.slow--
		m.run(w, &w.keepers[i].heartbeat)
	case stepRunExtend:
		m.run(w, &w.requests[i].extend)
		m.answerExtend(w, i)
	case stepSlowExtend:
		w.slow--
		m.run(w, &w.requests[i].extend)
	case stepAnswerExtend:
		m.answerExtend(w, i)
	case stepFailExtend:
		w.faults--
		m.leaveLate(w, &w.requests[i].extend)
		m.step(w, i, claim.Event{Kind: claim.Extended, TTL: int64(m.extendTo), Outcome: claim.InDoubt})
	case stepExtend:
		w.extends--
		out := m.step(w, i, claim.Event{Kind: claim.ExtendBegan, TTL: int64(m.extendTo)})
		if q := &w.requests[i]; q.claim.Active() {
			c := call{script: renew, requests: 1 << i, ttl: m.extendTo, keys: 2, exact: true}
			if out.Notify {
				c.keys = 4
			}
			q.extend = slot{call: m.srv.call(c), sent: w.tick}
		}
	case stepBreak:
		w.breaks--
		s := slot{call: m.srv.call(call{script: breaking, requests: 1 << i})}
		m.run(w, &s)
		w.requests[i].broken = m.srv.replies[s.reply][0] != lua.Refused
	case stepClose:
		w.closes--
		w.keepers[i].state = closed
		for r := range m.requests {
			if m.keeperOf[r] == i {
				m.step(w, r, claim.Event{Kind: claim.Closed})
			}
		}
		w.keepers[i].subscribed = false
		m.dropMessages(w, i)
	case stepRunLate:
		late := slot{call: w.late[i]}
		w.late[i] = 0
		tidy(w.late[:])
		m.run(w, &late)
	case stepAnswerAsk:
		m.answerAsk(w, i)
	case stepAnswerChange:
		m.answerChange(w, i)
	case stepAnswerHeartbeat:
		m.answerHeartbeat(w, i)
	case stepFailAsk:
		w.faults--
		m.leaveLate(w, &w.requests[i].ask)
		m.step(w, i, claim.Event{Kind: claim.AskFailed, Outcome: claim.InDoubt, Retryable: true})
	case stepFailChange:
		w.faults--
		q := &w.requests[i]
		kind := claim.RenewFailed
		if m.srv.calls[q.change.call].script != renew || q.claim.State() == claim.Checking {
			kind = claim.ReleaseFailed
		}
		m.leaveLate(w, &q.change)
		m.step(w, i, claim.Event{Kind: kind, Outcome: claim.InDoubt, Retryable: true, Pause: ms(1)})
	case stepFailHeartbeat:
		w.faults--
		p := &w.keepers[i]
		if c := m.srv.calls[p.heartbeat.call]; c.script == rejoin {
			for _, r := range c.list() {
				m.step(w, r, claim.Event{Kind: claim.CopyEnded, Outcome: claim.InDoubt})
			}
		}
		m.leaveLate(w, &p.heartbeat)
		p.due = true
	case stepMessage:
		id := w.messages[i]
		w.messages[i] = 0
		tidy(w.messages[:])
		m.receive(w, id)
	case stepRepeatMessage:
		w.faults--
		m.receive(w, w.messages[i])
	case stepLoseMessage:
		w.faults--
		for r := range m.requests {
			if x := &w.requests[r].retention; x.is && m.recalls(w.messages[i])&(1<<r) != 0 {
				x.lost = true
			}
		}
		w.messages[i] = 0
		tidy(w.messages[:])
	case stepCancel:
		w.cancels--
		if w.requests[i].claim.Pending() {
			m.step(w, i, claim.Event{Kind: claim.Cancelled})
		} else { // at the moment of the grant
			m.step(w, i, claim.Event{Kind: claim.Released, Unused: true})
		}
	case stepRelease:
		m.step(w, i, claim.Event{Kind: claim.Released})
	case stepTimer:
		m.step(w, i, claim.Event{Kind: claim.Timer, Unused: m.unused(w, i)})
	case stepHeartbeat:
		p := &w.keepers[i]
		p.due, p.beat = false, w.tick
		p.heartbeat = slot{call: m.srv.call(call{script: heartbeat, requests: m.waiters(w, i)}), sent: w.tick}
	case stepCrash, stepFreeze:
		w.crashes--
		m.stop(w, i, s.kind == stepCrash)
	case stepUnsubscribe:
		w.faults--
		m.dropMessages(w, i)
		m.subscriptionChanged(w, i, false)
	case stepSubscribe:
		w.keepers[i].due = true
		m.subscriptionChanged(w, i, true)
	case stepOpen:
		m.open(w, i)
	case stepEnter:
		m.enter(w, i)
	case stepLeave:
		m.leaveInside(w, i)
	case stepTurn:
		m.endTurn(w, i, true)
	case stepGiveUp:
		w.cancels--
		m.endTurn(w, i, false)
	case stepTick:
		w.tick++
	}
}

// timerDue reports whether the timer of a request may fire: a renewal only within the bounds, and if none is under way.
func (m *model) timerDue(w *world, r int) bool {
	q := &w.requests[r]
	if q.timer == 0 || w.instant() < q.timer {
		return false
	}
	tried := *w
	c := q.claim
	var out claim.Effects
	c.Step(&m.terms, w.instant(), &claim.Event{Kind: claim.Timer, Unused: q.retention.is && m.unused(&tried, r)}, &out)
	return out.RenewFor == 0 || q.change.call == 0 && (w.renewals > 0 || w.calm && q.retention.is)
}

// step tells the claim of a request of an event, and does what it says. Pauses between attempts take no time.
func (m *model) step(w *world, r int, e claim.Event) (out claim.Effects) {
	q, k := &w.requests[r], &w.keepers[m.keeperOf[r]]
	if q.phase != begun {
		return out
	}
	q.claim.Step(&m.terms, w.instant(), &e, &out)
	if out.StopTimer {
		q.timer = 0
	}
	if out.Timer > 0 {
		q.timer = out.Timer
	}
	if out.Ask {
		c := call{script: acquire, requests: 1 << r, try: m.tries[r]}
		if m.set.ShortKeys > 0 && !q.retention.is && !out.AskLong && m.origin[r] == 0 {
			c = call{script: acquireShort, requests: 1 << r}
		}
		q.ask = slot{call: m.srv.call(c), sent: w.tick}
	}
	if out.Deliver && !q.claim.Active() && !m.mayBeRejected(q, r) {
		q.rejection = q.claim.Reason()
	}
	k.due = k.due || out.HeartbeatBy > 0 || out.FirstBeatBy > 0
	if out.RenewFor > 0 {
		if !w.calm {
			w.renewals--
		}
		c := call{script: renew, requests: 1 << r, ttl: int16(out.RenewFor), keys: 1}
		if q.retention.is {
			q.retention.renewal = q.retention.lease.Renewal(m.gate(w, r), out.Metadata)
			c.ask = q.retention.renewal.Ask
			out.Metadata = q.retention.renewal.Metadata
		}
		if out.Metadata {
			c.keys = 2
		}
		q.change = slot{call: m.srv.call(c), sent: w.tick}
	}
	if q.retention.is {
		q.retention.hold.SetDeadline(q.claim.Deadline())
		if out.StopSharing || out.End {
			m.gate(w, r).End()
		}
	}
	if out.End {
		m.leaveLate(w, &q.extend)
		if q.retention.users > 0 && q.claim.Reason() == claim.ByRelease && e.Kind != claim.Closed { // they rely on it all the same
			q.believed = q.claim.Deadline()
		}
	}
	if out.Release {
		m.release(w, r)
	}
	if out.Check {
		q.change = slot{call: m.srv.call(call{script: renew, requests: 1 << r, ttl: ttl, keys: 2}), sent: w.tick}
	}
	m.convert(w, r, &out)
	if out.Finished {
		m.finish(w, r, e.Kind != claim.ReleaseFailed)
		return out
	}
	switch {
	case out.Pause, e.Kind == claim.ReleaseFailed:
		m.step(w, r, claim.Event{Kind: claim.Timer})
	case out.AskBreaker && q.broken:
		m.step(w, r, claim.Event{Kind: claim.Broken})
	case out.AskBreaker:
		m.step(w, r, claim.Event{Kind: claim.NotBroken})
	}
	switch {
	case out.End:
		m.retain(w, r, func(l *retain.Lease, g retain.HoldAt, out *retain.Effects) { l.Ended(g, w.instant(), out) })
	case out.GiveBack:
		m.giveBack(w, r, false)
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
		return m.origin[r] > 0
	}
	return m.tries[r] || m.origin[r] > 0
}

// release sends the release of what a token has.
func (m *model) release(w *world, r int) {
	q := &w.requests[r]
	m.leaveLate(w, &q.ask)
	if c := q.change.call; c != 0 && m.srv.calls[c].script == renew {
		m.leaveLate(w, &q.change)
		m.step(w, r, claim.Event{Kind: claim.RenewFailed, Outcome: claim.InDoubt})
	}
	tombstone, unused, _, _ := q.claim.Cleanup()
	c := call{script: release, requests: 1 << r, tombstone: tombstone}
	switch {
	case q.claim.Converts():
		c.cancel = 2
	case unused:
		c.cancel = 1
	case !q.claim.NeedsLong() && q.claim.Place() == 0: // nobody waited when it was granted
		c.script = releaseShort
	}
	q.change = slot{call: m.srv.call(c), sent: w.tick}
}

// finish forgets a request of which nothing is left to be done; known says that the server has said so, or was never asked.
func (m *model) finish(w *world, r int, known bool) {
	q := &w.requests[r]
	m.leaveLate(w, &q.ask)
	m.leaveLate(w, &q.change)
	was := *q
	*q = request{phase: over, rejection: was.rejection, broken: was.broken}
	if !known {
		q.phase = ended
	}
	if was.retention.users > 0 {
		q.retention, q.believed = was.retention, was.believed
	}
}

// run runs a call at the server.
func (m *model) run(w *world, s *slot) {
	listens := uint8(0)
	for k := range w.keepers {
		if w.keepers[k].subscribed {
			listens |= 1 << k
		}
	}
	result := m.srv.run(w.server, s.call, w.tick, listens)
	w.server, s.reply = result.server, result.reply
	for _, id := range result.sent {
		if w.messages[len(w.messages)-1] != 0 {
			panic("more messages than a world has room for")
		}
		w.messages[len(w.messages)-1] = id
		tidy(w.messages[:])
	}
}

// leaveLate ends the wait for a call: if it has not run yet, it may do so later.
func (m *model) leaveLate(w *world, s *slot) {
	if s.call != 0 && s.reply == 0 && w.late[len(w.late)-1] == 0 {
		w.late[len(w.late)-1] = s.call
		tidy(w.late[:])
	}
	*s = slot{}
}

// tidy sorts a list, with zeros at the end.
func tidy(list []int32) {
	slices.SortFunc(list, func(a, b int32) int { return cmp.Compare(uint32(a-1), uint32(b-1)) })
}

// codes are the codes of acquire's and heartbeat's replies, as claims know them.
var codes = map[int64]claim.Code{
	lua.Granted: claim.Granted, lua.Waiting: claim.Queued, lua.Refused: claim.Denied, lua.Tombstoned: claim.Tombstoned, lua.Conflict: claim.Conflict,
}

func (m *model) answerAsk(w *world, r int) {
	q := &w.requests[r]
	s := q.ask
	q.ask = slot{}
	a, err := protocol.ParseAcquireReply(m.srv.replies[s.reply])
	if err != nil {
		panic(err)
	}
	e := claim.Event{
		Kind: claim.Replied, Code: codes[a.Code], Short: m.srv.calls[s.call].script == acquireShort, More: a.More, Sent: instant(s.sent),
		Fence: a.Fence, Clock: a.Now, Place: a.Place,
	}
	switch {
	case a.NeedsLong:
		e.Code = claim.NeedsLong
	case a.Code == lua.Waiting:
		e.Fence = a.Seq
		w.keepers[m.keeperOf[r]].due = w.keepers[m.keeperOf[r]].due || a.More
	}
	m.step(w, r, e)
}

func (m *model) answerChange(w *world, r int) {
	q := &w.requests[r]
	s := q.change
	q.change = slot{}
	c := m.srv.calls[s.call]
	if c.script != renew {
		a, err := protocol.ParseReleaseReply(m.srv.replies[s.reply])
		if err != nil {
			panic(err)
		}
		e := claim.Event{Kind: claim.ReleaseReplied, Code: claim.Granted, Short: c.script == releaseShort, QueueEmpty: a.QueueEmpty}
		switch a.Code {
		case lua.Refused:
			e.Code = claim.Denied
		case lua.Held:
			e.Code, e.OriginOver = claim.Present, !m.holdsOrigin(w, r)
		}
		m.step(w, r, e)
		if k := m.keeperOf[r]; a.QueueEmpty && m.waiters(w, k) != 0 {
			w.keepers[k].due = true
		}
		return
	}
	parse := protocol.ParseRenewReply
	if c.ask {
		parse = protocol.ParseRetainedRenewReply
	}
	a, err := parse(m.srv.replies[s.reply])
	if err != nil {
		panic(err)
	}
	e := claim.Event{Kind: claim.Renewed, Code: claim.Denied, Sent: instant(s.sent), TTL: int64(c.ttl), Fence: a.Fence}
	if a.Held {
		e.Code = claim.Granted
	}
	if q.claim.State() == claim.Checking {
		e.Kind = claim.Checked
	}
	m.step(w, r, e)
	if a.Held && q.retention.is && q.claim.Active() {
		m.renewed(w, r, a.Recalled)
	}
}

func (m *model) answerExtend(w *world, r int) {
	q := &w.requests[r]
	s := q.extend
	q.extend = slot{}
	a, err := protocol.ParseRenewReplyWithFence(m.srv.replies[s.reply])
	if err != nil {
		panic(err)
	}
	e := claim.Event{Kind: claim.Extended, Code: claim.Denied, Sent: instant(s.sent), TTL: int64(m.extendTo)}
	if a.Held {
		e.Code = claim.Granted
	}
	m.step(w, r, e)
}

func (m *model) answerHeartbeat(w *world, k int) {
	p := &w.keepers[k]
	s := p.heartbeat
	p.heartbeat = slot{}
	c := m.srv.calls[s.call]
	list := c.list()
	a, err := protocol.ParseHeartbeatReply(m.srv.replies[s.reply], len(list))
	if err != nil {
		panic(err)
	}
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
	p.due = p.due || a.More
	again := call{script: rejoin}
	for _, r := range list {
		q, e := &w.requests[r], events[r]
		if e.Kind != claim.Rejoining {
			m.step(w, r, e)
		} else if q.phase == begun && q.claim.Pending() {
			var out claim.Effects
			q.claim.Step(&m.terms, w.instant(), &e, &out)
			again.requests |= 1 << r
			again.places[r] = out.Place
		}
	}
	if again.requests != 0 {
		p.heartbeat = slot{call: m.srv.call(again), sent: w.tick}
	}
}

// receive handles a message.
func (m *model) receive(w *world, id int32) {
	list, err := protocol.ParseMessage(m.srv.messages[id].text)
	if err != nil {
		panic(err)
	}
	for _, x := range list {
		n, err := strconv.Atoi(x.Serial)
		if err != nil {
			panic(err)
		}
		r := n - 1
		switch {
		case x.Recalled:
			if w.requests[r].phase == begun {
				m.giveBack(w, r, true)
			}
		case x.Broken != nil:
			m.step(w, r, claim.Event{Kind: claim.Broken})
		case x.Fence > 0:
			m.step(w, r, claim.Event{Kind: claim.Woken, Fence: x.Fence})
		default:
			m.step(w, r, claim.Event{Kind: claim.RetryAt, At: w.instant().Add(ms(x.RetryIn + 1))})
		}
	}
}

// dropMessages removes the messages to a keeper.
func (m *model) dropMessages(w *world, k int) {
	for i, id := range w.messages {
		if id != 0 && m.addressee(id) == k {
			w.messages[i] = 0
		}
	}
	tidy(w.messages[:])
}

// stop ends a keeper's process, or freezes it for good. The server keeps the subscription of a frozen one.
func (m *model) stop(w *world, k int, crash bool) {
	p := &w.keepers[k]
	m.dropMessages(w, k)
	m.leaveLate(w, &p.heartbeat)
	for r := range m.requests {
		q := &w.requests[r]
		if m.keeperOf[r] != k {
			continue
		}
		m.leaveLate(w, &q.ask)
		m.leaveLate(w, &q.change)
		m.leaveLate(w, &q.extend)
		if until := q.deadline(); crash || until == 0 {
			*q = request{phase: dead, broken: q.broken}
		} else {
			*q = request{phase: dead, believed: until, broken: q.broken, weak: q.weak, retention: q.retention}
		}
	}
	*p = keeper{state: crashed}
	if !crash {
		p.state, p.subscribed = frozen, true
	}
}

// problem returns what promise is broken in a world, or "".
func (m *model) problem(w *world) string {
	for a := range m.requests {
		for b := range a {
			if w.believes(a) && w.believes(b) && m.excludes(w, a, b) {
				return fmt.Sprintf("%s and %s both rely on a lease", requestName(b), requestName(a))
			}
		}
	}
	data := &m.srv.states[w.server]
	for r := range m.requests {
		if w.requests[r].retention.passing {
			return fmt.Sprintf("somebody is admitted by the lease of %s after its recall, which the keeper must have known", requestName(r))
		}
		if x := &w.requests[r].retention; m.flags[r] == turns && x.inside() > 1 {
			return fmt.Sprintf("%d are inside by the lease of %s, which is for one", x.inside(), requestName(r))
		}
		q := &w.requests[r]
		if q.phase == over && data.known&(1<<r) != 0 {
			return fmt.Sprintf("%s is over, and its cleanup was answered, but the server has a lease or a place of it", requestName(r))
		}
		if q.broken && data.known&(1<<r) != 0 {
			return fmt.Sprintf("%s was broken, but the server has a lease or a place of it", requestName(r))
		}
		if q.rejection != claim.NoReason {
			return fmt.Sprintf("%s was rejected, though nobody cancelled it", requestName(r))
		}
	}
	return ""
}

// describe says what a step does in a world.
func (m *model) describe(w *world, s step) string {
	i := int(s.at)
	keeperName := func(k int) string { return "keeper " + keeperID(k) }
	name := func(c slot) string { return m.srv.describe(c.call) }
	reply := func(c slot) string { return fmt.Sprint(m.srv.replies[c.reply]) }
	var of func(what string, c slot) string
	of = func(what string, c slot) string {
		switch what {
		case "run":
			ran := *w
			copied := c
			m.run(&ran, &copied)
			return fmt.Sprintf("the server runs: %s, and replies %s", name(c), reply(copied))
		case "slow":
			return of("run", c) + ", which arrives later"
		case "answer":
			return fmt.Sprintf("%s is answered %s", name(c), reply(c))
		}
		return "no reply comes, and a copy may run later: " + name(c)
	}
	switch s.kind {
	case stepBegin:
		return fmt.Sprintf("%s begins, in %s", requestName(i), keeperName(m.keeperOf[i]))
	case stepRunAsk:
		return of("run", w.requests[i].ask)
	case stepRunChange:
		return of("run", w.requests[i].change)
	case stepRunHeartbeat:
		return of("run", w.keepers[i].heartbeat)
	case stepRunLate:
		return "the server runs a late copy: " + m.srv.describe(w.late[i])
	case stepSlowAsk:
		return of("slow", w.requests[i].ask)
	case stepSlowChange:
		return of("slow", w.requests[i].change)
	case stepSlowHeartbeat:
		return of("slow", w.keepers[i].heartbeat)
	case stepAnswerAsk:
		return of("answer", w.requests[i].ask)
	case stepAnswerChange:
		return of("answer", w.requests[i].change)
	case stepAnswerHeartbeat:
		return of("answer", w.keepers[i].heartbeat)
	case stepFailAsk:
		return of("fail", w.requests[i].ask)
	case stepFailChange:
		return of("fail", w.requests[i].change)
	case stepFailHeartbeat:
		return of("fail", w.keepers[i].heartbeat)
	case stepMessage:
		return fmt.Sprintf("%s receives %q", keeperName(m.addressee(w.messages[i])), m.srv.messages[w.messages[i]].text)
	case stepLoseMessage:
		return fmt.Sprintf("%q to %s is lost", m.srv.messages[w.messages[i]].text, keeperName(m.addressee(w.messages[i])))
	case stepCancel:
		if !w.requests[i].claim.Pending() {
			return requestName(i) + " is cancelled as it is granted"
		}
		return requestName(i) + " is cancelled"
	case stepRelease:
		return requestName(i) + " releases"
	case stepTimer:
		return "the timer of " + requestName(i) + " fires"
	case stepRunExtend:
		return of("run", w.requests[i].extend)
	case stepSlowExtend:
		return of("slow", w.requests[i].extend)
	case stepAnswerExtend:
		return of("answer", w.requests[i].extend)
	case stepFailExtend:
		return of("fail", w.requests[i].extend)
	case stepExtend:
		return fmt.Sprintf("%s extends its lease to %d ms", requestName(i), m.extendTo)
	case stepBreak:
		return "somebody breaks " + requestName(i)
	case stepClose:
		return keeperName(i) + " is closed"
	case stepHeartbeat:
		return keeperName(i) + " sends a heartbeat"
	case stepCrash:
		return keeperName(i) + " crashes"
	case stepFreeze:
		return keeperName(i) + " freezes for good"
	case stepUnsubscribe:
		return keeperName(i) + " loses its subscription"
	case stepSubscribe:
		return keeperName(i) + " subscribes again"
	case stepRepeatMessage:
		return fmt.Sprintf("%s receives %q, which will come again", keeperName(m.addressee(w.messages[i])), m.srv.messages[w.messages[i]].text)
	case stepOpen:
		return fmt.Sprintf("the caller of %s learns of its lease, and others may enter by it", requestName(i))
	case stepEnter:
		return fmt.Sprintf("a caller enters by the lease of %s, or waits for the one inside", requestName(i))
	case stepLeave:
		return fmt.Sprintf("a caller inside by the lease of %s leaves", requestName(i))
	case stepTurn:
		return fmt.Sprintf("the caller that waits for the one inside by the lease of %s learns of the end of its wait", requestName(i))
	case stepGiveUp:
		return fmt.Sprintf("the caller that waits for the one inside by the lease of %s is cancelled", requestName(i))
	}
	return fmt.Sprintf("time passes: %d ms", int64(w.tick+1)*tick)
}
