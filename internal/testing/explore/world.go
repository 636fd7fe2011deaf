package explore

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// phase is the state of a request in its keeper. docs/protocol.md has all of them.
type phase uint8

const (
	idle     phase = iota // not begun
	asking                // the reply to acquire is outstanding
	waiting               // queued, as far as the keeper knows
	leased                // granted; relied on until the deadline
	lost                  // a renewal was refused
	leaving               // the reply to the release is outstanding
	over                  // nothing is left to do
	rejected              // the server said no to a request that nobody cancelled
	dead                  // its process crashed
)

// slot is a call whose reply a keeper waits for.
type slot struct {
	call  int32 // 0: none
	reply int32 // 0: it has not run yet
	sent  int8  // tick
}

// request is a request in its keeper.
type request struct {
	phase       phase
	renewed     int8 // tick at which the last renewal was sent, or of the grant
	asked       int8 // when the last call was sent that was answered with "waiting", or the first call
	floor       int64
	clock       int64 // ms, of the answer that has the floor; 0: there was none
	early       int64 // fence of a message that came before it
	place       int64
	deadline    int64 // ms since start
	record      engine.TokenRecord
	ask, change slot // acquire; renew and then release
	retention   retention
}

// keeperState is the state of a process.
type keeperState uint8

const (
	running keeperState = iota
	crashed
	frozen // for good. A keeper that wakes again is one whose steps come late
)

// keeper is a process.
type keeper struct {
	state      keeperState
	subscribed bool // as the server sees it
	due        bool // a heartbeat is to be sent at once
	beat       int8 // tick of the last one
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
	flags    [maxRequests]string    // of the tokens
	exclude  func(a, b string) bool // whether requests with these flags exclude each other; nil: all do
	rules    rules
	change   func(script string) string // of the scripts; nil: none

	// Bounds of all paths.
	ticks    int8
	faults   int8 // calls that are not answered, messages that are lost, subscriptions that break
	slow     int8 // replies that do not arrive before something else happens
	cancels  int8 // requests that are cancelled
	renewals int8
	crashes  int8 // processes that crash, or freeze for good
	entries  int8 // readers that a process admits by a lease that it retains, besides the first
}

func (c *config) tokens() (list [maxRequests]string) {
	for r := range list {
		t := protocol.Token{Keeper: keeperID(c.keeperOf[r]), Serial: strconv.Itoa(r + 1), TTL: ttl, ClaimTTL: claimTTL, Flags: c.flags[r]}
		if c.flags[r] == protocol.FlagWrite {
			t.Number = 5
		}
		list[r] = t.String()
	}
	return list
}

func keeperID(k int) string { return string(rune('a' + k)) }

func (c *config) initial() world {
	w := world{faults: c.faults, slow: c.slow, renewals: c.renewals, cancels: c.cancels, crashes: c.crashes, entries: c.entries}
	for k := range w.keepers {
		w.keepers[k].subscribed = true
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
	stepSlowAsk
	stepSlowChange
	stepSlowHeartbeat
	stepAnswerAsk
	stepAnswerChange
	stepAnswerHeartbeat
	stepFailAsk
	stepFailChange
	stepFailHeartbeat
	stepRunLate
	stepMessage
	stepLoseMessage
	stepCancel
	stepRelease
	stepRenew
	stepHeartbeat
	stepCrash
	stepFreeze
	stepUnsubscribe
	stepSubscribe
	stepOpen          // the caller whose request brought a retained lease learns of it
	stepEnter         // a reader is admitted inside a process
	stepLeave         // a reader leaves
	stepLapse         // a keeper finds that the deadline of a retained lease has passed
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
	srv *server
}

func newModel(c *config) *model { return &model{c, newServer(c.set, c.tokens(), c.change)} }

func (w *world) now() int64 { return int64(w.tick) * tick }

// believes reports whether a process relies on the lease of a request. A frozen one does when it wakes.
func (w *world) believes(r int) bool {
	q := &w.requests[r]
	if x := &q.retention; x.is {
		return x.inside > 0 && q.phase != lost && (w.now() < q.deadline || x.late)
	}
	return q.phase == leased && w.now() < q.deadline
}

func (m *model) alive(w *world, r int) bool { return w.keepers[m.keeperOf[r]].state == running }

// steps calls visit for each step that is possible in a world.
func (m *model) steps(w *world, visit func(step)) {
	try := func(kind stepKind, at int) { visit(step{kind, uint8(at)}) }
	for r := range m.requests {
		q, k := &w.requests[r], m.keeperOf[r]
		m.calls(w, q.ask, m.alive(w, r), r, stepRunAsk, try)
		m.calls(w, q.change, m.alive(w, r), r, stepRunChange, try)
		if !m.alive(w, r) {
			continue
		}
		// Requests of a keeper that differ in nothing begin in their order.
		inOrder := r == 0 || m.keeperOf[r-1] != k || m.flags[r-1] != m.flags[r] || w.requests[r-1].phase != idle
		if q.phase == idle && inOrder && (m.flags[r] != retained || w.keepers[k].subscribed) {
			try(stepBegin, r)
		}
		if w.cancels > 0 && (q.phase == asking || q.phase == waiting) {
			try(stepCancel, r)
		}
		if q.retention.is {
			m.retentionSteps(w, r, try)
			continue
		}
		if q.phase == leased && q.change.call == 0 || q.phase == lost {
			try(stepRelease, r)
		}
		if w.renewals > 0 && w.believes(r) && q.change.call == 0 && q.renewed < w.tick {
			try(stepRenew, r)
		}
	}
	for k := range w.keepers {
		p := &w.keepers[k]
		m.calls(w, p.heartbeat, p.state == running, k, stepRunHeartbeat, try)
		if p.state != running {
			continue
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
	if w.slow > 0 && m.srv.calls[s.call].script != release {
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
		if m.keeperOf[r] == k && w.requests[r].phase == waiting {
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
		q.phase, q.asked = asking, w.tick
		if m.flags[i] == retained {
			q.retention = retention{is: true, confirmed: true}
		}
		if m.flags[i] == protocol.FlagWrite {
			m.yield(w, m.keeperOf[i])
		}
		m.sendAsk(w, i, m.set.ShortKeys > 0 && m.flags[i] != retained)
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
		q := &w.requests[i]
		short := m.srv.calls[q.ask.call].script == acquireShort
		m.leaveLate(w, &q.ask)
		q.record.CopyDone(transport.InDoubt)
		if q.phase == asking {
			m.sendAsk(w, i, short)
		}
	case stepFailChange:
		w.faults--
		q := &w.requests[i]
		c := q.change.call
		m.leaveLate(w, &q.change)
		if m.srv.calls[c].script == release {
			q.change = slot{call: c, sent: w.tick}
		}
	case stepFailHeartbeat:
		w.faults--
		p := &w.keepers[i]
		if c := m.srv.calls[p.heartbeat.call]; c.script == rejoin {
			for _, r := range c.list() {
				w.requests[r].record.CopyDone(transport.InDoubt)
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
		m.leave(w, i)
	case stepRelease:
		m.release(w, i, false)
	case stepRenew:
		q := &w.requests[i]
		if !w.calm {
			w.renewals--
		}
		if q.retention.is && !m.onTimer(w, i) {
			return
		}
		q.renewed = w.tick
		q.change = slot{call: m.srv.call(call{script: renew, requests: 1 << i}), sent: w.tick}
	case stepHeartbeat:
		p := &w.keepers[i]
		p.due, p.beat = false, w.tick
		p.heartbeat = slot{call: m.srv.call(call{script: heartbeat, requests: m.waiters(w, i)}), sent: w.tick}
	case stepCrash, stepFreeze:
		w.crashes--
		m.stop(w, i, s.kind == stepCrash)
	case stepUnsubscribe:
		w.faults--
		w.keepers[i].subscribed = false
		m.dropMessages(w, i)
		m.subscriptionChanged(w, i, false)
	case stepSubscribe:
		w.keepers[i].subscribed, w.keepers[i].due = true, true
		m.subscriptionChanged(w, i, true)
	case stepOpen:
		w.requests[i].retention.openLease()
	case stepEnter:
		m.enter(w, i)
	case stepLeave:
		m.leaveInside(w, i)
	case stepLapse:
		w.requests[i].phase = lost
		m.giveBack(w, i, false)
	case stepTick:
		w.tick++
	}
}

// sendAsk sends acquire for a request.
func (m *model) sendAsk(w *world, r int, short bool) {
	c := call{script: acquire, requests: 1 << r}
	if short {
		c.script = acquireShort
	}
	q := &w.requests[r]
	q.record.CopySent()
	q.ask = slot{call: m.srv.call(c), sent: w.tick}
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

// leave ends a request without a lease, as its caller or the server wants.
func (m *model) leave(w *world, r int) {
	q := &w.requests[r]
	if !q.record.NeedsCleanup() {
		m.leaveLate(w, &q.ask)
		*q = request{phase: over}
		return
	}
	m.release(w, r, true)
}

// release sends the release of a request's lease or place.
func (m *model) release(w *world, r int, unused bool) {
	q := &w.requests[r]
	c := call{script: release, requests: 1 << r, tombstone: m.rules.needsTombstone(q.record), unused: unused}
	m.leaveLate(w, &q.ask)
	m.leaveLate(w, &q.change)
	was := *q
	*q = request{phase: leaving, change: slot{call: m.srv.call(c), sent: w.tick}}
	if was.retention.inside > 0 { // they rely on it all the same
		q.retention, q.deadline = was.retention, was.deadline
	}
}

// grant handles a grant whose lease lasts for ms from when a call was sent. It reports whether the grant came in time.
func (m *model) grant(w *world, r int, sent int8, ms int64) bool {
	q := &w.requests[r]
	from := start + int64(sent)*tick
	until := m.rules.leaseUntil(from, start+w.now(), ms)
	if !engine.GrantInTime(msTime(until), msTime(start+w.now())) {
		return false
	}
	*q = request{phase: leased, deadline: until - start, record: q.record, renewed: w.tick, ask: q.ask, retention: q.retention}
	if ms < ttl || sent != w.tick {
		q.renewed = -1
	}
	return true
}

func (m *model) answerAsk(w *world, r int) {
	q := &w.requests[r]
	s := q.ask
	short := m.srv.calls[s.call].script == acquireShort
	q.record.CopyDone(transport.Answered)
	q.ask = slot{}
	if q.phase != asking {
		return // a message came first
	}
	a, err := protocol.ParseAcquireReply(m.srv.replies[s.reply])
	if err != nil {
		panic(err)
	}
	switch {
	case a.NeedsLong || short && a.Code == lua.Refused:
		m.sendAsk(w, r, false)
	case a.Code == lua.Granted:
		if !m.grant(w, r, s.sent, ttl) {
			m.sendAsk(w, r, false)
		}
	case a.Code == lua.Waiting:
		q.phase = waiting
		m.stillWaiting(q, s.sent, a.Now, a.Seq, a.Place)
		if early := q.early; early > 0 {
			q.early = 0
			m.wakeup(w, r, early)
		}
		w.keepers[m.keeperOf[r]].due = w.keepers[m.keeperOf[r]].due || a.More
	default:
		q.phase = rejected
	}
}

// stillWaiting notes that a call was answered with "waiting".
func (m *model) stillWaiting(q *request, sent int8, clock, seq, place int64) {
	if sent > q.asked || q.place == 0 {
		q.asked, q.clock, q.floor = sent, clock, seq
	}
	if place > 0 {
		q.place = place
	}
}

func (m *model) answerChange(w *world, r int) {
	q := &w.requests[r]
	s := q.change
	q.change = slot{}
	if m.srv.calls[s.call].script == release {
		a, err := protocol.ParseReleaseReply(m.srv.replies[s.reply])
		if err != nil {
			panic(err)
		}
		was := *q
		*q = request{phase: over}
		if was.retention.inside > 0 {
			q.retention, q.deadline = was.retention, was.deadline
		}
		if k := m.keeperOf[r]; a.QueueEmpty && m.waiters(w, k) != 0 {
			w.keepers[k].due = true
		}
		return
	}
	parse := protocol.ParseRenewReply
	if q.retention.is {
		parse = protocol.ParseRetainedRenewReply
	}
	a, err := parse(m.srv.replies[s.reply])
	switch {
	case err != nil:
		panic(err)
	case q.phase != leased:
	case a.Held:
		until := m.rules.leaseUntil(start+int64(s.sent)*tick, start+w.now(), ttl) - start
		q.deadline = max(q.deadline, until)
		if q.retention.is {
			m.renewed(w, r, a.Recalled)
		}
	default:
		q.phase = lost
		if q.retention.is {
			m.giveBack(w, r, false)
		}
	}
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
			if w.requests[r].phase != over && w.requests[r].phase != leaving {
				w.requests[r].record.CopyDone(transport.Answered)
			}
		}
	}
	changed := uint8(0)
	again := call{script: rejoin}
	for _, change := range a.Changes {
		r := list[change.Index]
		q := &w.requests[r]
		changed |= 1 << r
		if q.phase != waiting {
			continue
		}
		switch change.Code {
		case lua.Granted, lua.Held:
			if !m.grant(w, r, s.sent, change.ExpiresIn) {
				p.due = true
			}
		case lua.Waiting:
			m.stillWaiting(q, s.sent, a.Now, a.Seq, change.Place)
		case lua.Unknown:
			again.requests |= 1 << r
			again.places[r] = m.rules.rejoinPlace(q.place, start+int64(q.asked)*tick, start+w.now(), heartbeatTTL)
		default:
			q.phase = rejected
		}
	}
	for _, r := range list {
		if changed&(1<<r) == 0 && w.requests[r].phase == waiting {
			m.stillWaiting(&w.requests[r], s.sent, a.Now, a.Seq, 0)
		}
	}
	p.due = p.due || a.More
	if again.requests != 0 {
		for _, r := range again.list() {
			w.requests[r].record.CopySent()
		}
		p.heartbeat = slot{call: m.srv.call(again), sent: w.tick}
	}
}

// receive handles a message.
func (m *model) receive(w *world, id int32) {
	k := m.addressee(id)
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
		q := &w.requests[r]
		if x.Recalled {
			if q.retention.is && m.rules.recallReceived() {
				m.giveBack(w, r, true)
			}
			continue
		}
		if q.phase != asking && q.phase != waiting {
			continue
		}
		switch {
		case x.Fence == 0:
			w.keepers[k].due = true
		case q.clock == 0:
			q.early = max(q.early, x.Fence)
		default:
			m.wakeup(w, r, x.Fence)
		}
	}
}

// wakeup handles a message that a waiter was granted the lock.
func (m *model) wakeup(w *world, r int, fence int64) {
	q := &w.requests[r]
	if m.rules.wakeupCounts(fence, q.floor, q.clock, start+int64(q.asked)*tick, start+w.now(), claimTTL) && m.grant(w, r, q.asked, claimTTL) {
		q.renewed = -1
		return
	}
	w.keepers[m.keeperOf[r]].due = true
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
		if crash || q.phase != leased {
			*q = request{phase: dead}
		} else {
			*q = request{phase: leased, deadline: q.deadline, retention: q.retention}
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
			if w.believes(a) && w.believes(b) && (m.exclude == nil || m.exclude(m.flags[a], m.flags[b])) {
				return fmt.Sprintf("%s and %s both rely on a lease", requestName(b), requestName(a))
			}
		}
	}
	data := &m.srv.states[w.server]
	for r := range m.requests {
		if w.requests[r].retention.passing {
			return fmt.Sprintf("a reader is admitted by the lease of %s after its recall, which the keeper must have known", requestName(r))
		}
		switch w.requests[r].phase {
		case over:
			if data.known&(1<<r) != 0 {
				return fmt.Sprintf("%s is over, and its cleanup was answered, but the server has a lease or a place of it", requestName(r))
			}
		case rejected:
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
		return requestName(i) + " is cancelled"
	case stepRelease:
		return requestName(i) + " releases"
	case stepRenew:
		return requestName(i) + " sends a renewal"
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
		return fmt.Sprintf("the caller of %s learns of its lease, and readers may enter by it", requestName(i))
	case stepEnter:
		return fmt.Sprintf("a reader enters by the lease of %s", requestName(i))
	case stepLeave:
		return fmt.Sprintf("a reader of %s leaves", requestName(i))
	case stepLapse:
		return fmt.Sprintf("%s finds that the deadline of %s has passed", keeperName(m.keeperOf[i]), requestName(i))
	}
	return fmt.Sprintf("time passes: %d ms", int64(w.tick+1)*tick)
}
