package explore

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
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
	believed  claim.Instant // until when a process relies on the lease that is frozen
	ask       slot          // acquire
	change    slot          // renew, and then release
	extend    slot          // the renewal of an Extend
	downgrade slot
	rejection claim.Reason // why a request was refused, if nobody has given it up
	handedOn  bool         // the fast script that hands on has been sent
	broken    bool         // somebody has ended it at the server
	converted bool         // its holder relies on reading though it has asked to write, or the other way round
	upgrade   int8         // the request by which the lease writes, counted from 1; 0: none
	queued    bool         // it is in the queue of its keeper
	asksWhy   bool         // the server is asked who has broken it
}

type phase uint8

const (
	idle  phase = iota // it has not begun
	begun              // its claim has something to do
	over               // nothing is left to do, and the server has said so
	ended              // nothing is left to do
	dead               // its process has crashed, or is frozen for good
)

type keeperState uint8

const (
	running keeperState = iota
	closed
	crashed
	frozen // for good. A keeper that wakes again is one whose steps come late
)

type keeper struct {
	state      keeperState
	subscribed bool          // as it sees it itself, and the server unless the world says otherwise
	since      claim.Instant // when it subscribed
	doubts     bool          // it does not count on its subscription
	waiters    waiters
}

// world is a state of everything. It is compared and hashed as a value.
type world struct {
	server     int32
	tick       int8
	faults     int8 // how often each of these may still happen
	slow       int8
	renewals   int8
	cancels    int8
	crashes    int8
	closes     int8
	extends    int8
	downgrades int8
	breaks     int8
	calm       bool // there are no more faults, and no bounds; see isServed
	passed     int8 // a request that was passed over though it does not count on its subscription, counted from 1
	impossible impossible
	keepers    [maxKeepers]keeper
	requests   [maxRequests]request
	late       [4]int32 // calls that nobody waits for any more and that have not run, sorted; 0: none
	messages   [6]int32 // on their way, sorted; 0: none
}

type config struct {
	set      *lua.Set
	requests int
	keeperOf [maxRequests]int
	flags    [maxRequests]string        // of the tokens
	permits  [maxRequests]int64         // of a semaphore of semaphoreLimit
	tries    [maxRequests]bool          // requests that do not wait
	unseen   [maxKeepers]bool           // keepers whose subscriptions are acknowledged, but kept elsewhere: the server does not count them, and no message comes
	origin   [maxRequests]int           // which lease a request makes write, counted from 1; 0: none
	extendTo int16                      // ms
	change   func(script string) string // of the scripts; nil: none

	// Bounds of all paths.
	ticks      int8
	faults     int8 // calls that are not answered, messages that are lost, subscriptions that break
	slow       int8 // replies that do not arrive before something else happens
	cancels    int8 // requests that are cancelled
	renewals   int8
	crashes    int8 // processes that crash, or freeze for good
	closes     int8 // processes that close their keeper
	extends    int8
	downgrades int8
	breaks     int8 // leases and requests that somebody else ends
}

func (c *config) tokens() (list [maxRequests]string) {
	for r := range list {
		t := protocol.Token{Keeper: keeperID(c.keeperOf[r]), Serial: strconv.Itoa(r + 1), TTL: ttl, ClaimTTL: claimTTL, Flags: c.flags[r]}
		switch c.flags[r] {
		case protocol.FlagHeld:
			t.Number = c.permits[r]
		case protocol.FlagWrite:
			t.Number = 5
		case protocol.FlagUpgrade:
			t.Number = int64(r)
		}
		list[r] = t.String()
	}
	return list
}

// keepers returns how many keepers have requests.
func (c *config) keepers() int { return slices.Max(c.keeperOf[:c.requests]) + 1 }

func keeperID(k int) string { return string(rune('a'+k)) + way }

func (c *config) initial() world {
	w := world{
		faults: c.faults, slow: c.slow, renewals: c.renewals, cancels: c.cancels, crashes: c.crashes, closes: c.closes, extends: c.extends,
		downgrades: c.downgrades, breaks: c.breaks,
	}
	for k := range w.keepers {
		w.keepers[k].subscribed, w.keepers[k].since = true, instant(0)
	}
	return w
}

type model struct {
	*config
	srv     *server
	terms   claim.Rules
	retryIn int64 // of the reply to the request that is being told of it
}

func newModel(c *config) *model {
	srv := newServer(c.set, c.tokens(), c.change)
	srv.origin = c.origin
	return &model{config: c, srv: srv, terms: claim.Rules{
		TTL: ttl, ClaimTTL: claimTTL, HeartbeatTimeout: ms(heartbeatTTL), MetadataTTL: ms(metadataTTL),
	}}
}

// impossible is an event that a claim got in a state in which it cannot come. The zero value is none.
type impossible struct {
	request int8 // counted from 1
	state   claim.State
	event   claim.Kind
}

// note notes such an event.
func (w *world) note(r int, state claim.State, event claim.Kind, out *claim.Effects) {
	if out.Impossible {
		w.impossible = impossible{int8(r + 1), state, event}
	}
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
func (m *model) believes(w *world, r int) bool {
	q := &w.requests[r]
	return w.instant() < q.deadline()
}

func (m *model) alive(w *world, r int) bool { return w.keepers[m.keeperOf[r]].alive() }

func (p *keeper) alive() bool { return p.state <= closed }

func (m *model) run(w *world, s *slot) {
	listens := uint8(0)
	for k := range w.keepers {
		if w.keepers[k].subscribed && !m.unseen[k] {
			listens |= 1 << k
		}
	}
	before := w.server
	result := m.srv.run(w.server, s.call, w.tick, listens)
	w.server, s.reply = result.server, result.reply
	if r := m.srv.passedOver(before, w.server, s.call, start+w.now()); r >= 0 {
		w.passed = int8(r + 1)
	}
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

// take removes an element of a list that tidy sorts, and returns it.
func take(list []int32, i int) int32 {
	x := list[i]
	list[i] = 0
	tidy(list)
	return x
}

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
	m.leaveLate(w, &p.waiters.heartbeat)
	for r := range m.requests {
		q := &w.requests[r]
		if m.keeperOf[r] != k {
			continue
		}
		m.leaveLate(w, &q.ask)
		m.leaveLate(w, &q.change)
		m.leaveLate(w, &q.extend)
		m.leaveLate(w, &q.downgrade)
		if until := q.deadline(); crash || until == 0 {
			*q = request{phase: dead, broken: q.broken}
		} else {
			*q = request{phase: dead, believed: until, broken: q.broken, converted: q.converted}
		}
	}
	*p = keeper{state: crashed}
	if !crash {
		p.state, p.subscribed = frozen, true
	}
}

// known reports whether the server has a lease or a place of a request, or has a lease write by it that its holder relies on.
func (m *model) known(w *world, r int) bool {
	st := &m.srv.states[w.server]
	return st.known&(1<<r) != 0 || st.upgraded&(1<<r) != 0 && m.believes(w, m.origin[r]-1)
}

func (m *model) problem(w *world) string {
	for a := range m.requests {
		for b := range a {
			if m.believes(w, a) && m.believes(w, b) && m.excludes(w, a, b) {
				return fmt.Sprintf("%s and %s both rely on a lease", requestName(b), requestName(a))
			}
		}
	}
	if w.passed > 0 {
		return fmt.Sprintf("%s is passed over", requestName(int(w.passed-1)))
	}
	if x := w.impossible; x.request > 0 {
		return fmt.Sprintf("%s is %s, in which %s cannot come", requestName(int(x.request-1)), x.state, x.event)
	}
	for r := range m.requests {
		q := &w.requests[r]
		if q.phase == over && m.known(w, r) {
			return fmt.Sprintf("%s is over, and its cleanup was answered, but the server has a lease or a place of it", requestName(r))
		}
		if q.broken && m.known(w, r) {
			return fmt.Sprintf("%s was broken, but the server has a lease or a place of it", requestName(r))
		}
		if q.rejection != claim.NoReason {
			return fmt.Sprintf("%s was rejected, though nobody cancelled it", requestName(r))
		}
	}
	return ""
}
