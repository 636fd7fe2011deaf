package explore

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/retain"
)

// retention is what a keeper has of a request whose lease it retains. The zero value is that of other requests.
type retention struct {
	is      bool // it is a retention
	opened  bool // the caller whose request brought the lease has learned of it
	used    bool // since its timer ran
	waiting bool // a caller waits for the one inside to leave
	called  bool // it has been woken
	users   int8 // callers that rely on the lease
	lease   retain.Lease
	hold    retain.Value
	renewal retain.Renewal // that is under way
	// What no keeper knows, for the promises.
	lost    bool // a message about its recall was lost on a subscription that lasts
	late    bool // somebody entered after the deadline
	passing bool // somebody entered after a recall that the keeper must have known
}

// The flags of leases that their process retains: of reads, of the turns of a mutex, and of permits.
const (
	retained = protocol.FlagRead + protocol.FlagRetained
	turns    = protocol.FlagRetained
	pooled   = protocol.FlagHeld + protocol.FlagRetained
)

// isAlone reports whether one caller is inside at a time by such a lease.
func isAlone(flags string) bool { return flags == turns || flags == pooled }

// isRetained reports whether a request with these flags is for a lease that its process retains.
func isRetained(flags string) bool { return strings.HasSuffix(flags, protocol.FlagRetained) }

// maxInside bounds the readers that are inside by one lease.
const maxInside = 2

func newRetention(flags string, epoch uint8) retention {
	kind := retain.Reads
	switch flags {
	case turns:
		kind = retain.Turns
	case pooled:
		kind = retain.Permits
	}
	return retention{is: true, lease: retain.NewLease(kind), hold: retain.New(time.Time{}, current(epoch)).Value()}
}

func current(epoch uint8) *atomic.Uint64 {
	var n atomic.Uint64
	n.Store(uint64(epoch))
	return &n
}

// hold returns who is inside, as the process sees it now. The caller stores its Value if it has changed.
func (m *model) hold(w *world, r int) *retain.Hold {
	return w.requests[r].retention.hold.Hold(w.epoch(), current(w.keepers[m.keeperOf[r]].epoch))
}

// epoch returns when the world began, by the clock, which stands still during a search.
func (w *world) epoch() time.Time { return time.Now().Add(-time.Duration(w.instant())) }

func (m *model) inside(w *world, r int) int { return m.hold(w, r).Inside() }

// retentionSteps visits the steps of a request that has a retention.
func (m *model) retentionSteps(w *world, r int, try func(stepKind, int)) {
	q := &w.requests[r]
	x := &q.retention
	if x.users > 0 {
		try(stepLeave, r)
	}
	if (q.claim.Active() || q.claim.State() == claim.Lost) && !x.opened {
		try(stepOpen, r)
	}
	if x.waiting {
		if x.called {
			try(stepTurn, r)
		}
		if w.cancels > 0 {
			try(stepGiveUp, r)
		}
	}
	if !x.opened || !(w.entries > 0 && m.inside(w, r) < maxInside || w.calm && !x.used && m.somebodyWaits(w)) {
		return
	}
	switch hold := m.hold(w, r); {
	case !isAlone(m.flags[r]):
		if ok, _ := hold.Enter(); ok {
			try(stepEnter, r)
		}
	case !x.waiting:
		if hold.EnterAlone() != retain.Closed {
			try(stepEnter, r)
		}
	}
}

// somebodyWaits reports whether a live request waits for a grant. As long as one does, callers keep coming in a world without faults.
func (m *model) somebodyWaits(w *world) bool {
	for r := range m.requests {
		if q := &w.requests[r]; q.phase == begun && q.claim.Pending() && m.alive(w, r) {
			return true
		}
	}
	return false
}

// subscriptionChanged notes that the subscription of a keeper has begun or ended.
func (m *model) subscriptionChanged(w *world, k int, subscribed bool) {
	w.keepers[k].subscribed = subscribed
	w.keepers[k].epoch++
	for r := range m.requests {
		if q := &w.requests[r]; m.keeperOf[r] == k && q.retention.opened && subscribed {
			m.step(w, r, claim.Event{Kind: claim.RenewalWanted}) // it asks whether it was recalled
		}
	}
}

// open begins to grant inside by a lease, with the caller whose request brought it.
func (m *model) open(w *world, r int) {
	q := &w.requests[r]
	x := &q.retention
	hold := m.hold(w, r)
	x.lease.Granted(hold, q.claim.Place() != 0)
	x.hold = hold.Value()
	x.opened, x.used, x.users = true, true, 1
}

// enter lets a caller inside the process, or makes it wait for the one inside.
func (m *model) enter(w *world, r int) {
	if !w.calm {
		w.entries--
	}
	x := &w.requests[r].retention
	x.used = true
	hold, entered := m.hold(w, r), true
	if !isAlone(m.flags[r]) {
		hold.Enter()
	} else if hold.EnterAlone() == retain.Busy {
		entered, x.waiting, x.called = false, x.lease.AwaitTurn(hold), false
	}
	if x.hold = hold.Value(); entered {
		x.users++
		m.entered(w, r)
	}
}

// entered notes who is inside against a promise.
func (m *model) entered(w *world, r int) {
	q := &w.requests[r]
	x := &q.retention
	x.late = x.late || w.instant() >= q.claim.Deadline()
	x.passing = x.passing || m.srv.states[w.server].recalled&(1<<r) != 0 && !x.lost && !m.recallUnderWay(w, r)
}

func (m *model) recallUnderWay(w *world, r int) bool {
	for _, id := range w.messages {
		if id != 0 && m.recalls(id)&(1<<r) != 0 {
			return true
		}
	}
	return false
}

func (m *model) recalls(id int32) (bits uint8) {
	if !strings.HasSuffix(m.srv.messages[id].text, " recall") {
		return 0
	}
	for _, r := range m.srv.addressed(id) {
		bits |= 1 << r
	}
	return bits
}

// retain tells the retained lease of a request of an event, and does what it says.
func (m *model) retain(w *world, r int, event func(*retain.Lease, *retain.Hold, *retain.Effects)) {
	q := &w.requests[r]
	x := &q.retention
	if !x.is {
		return
	}
	var out retain.Effects
	hold := m.hold(w, r)
	event(&x.lease, hold, &out)
	x.lease, x.hold = x.lease.Bare(), hold.Value()
	x.called = x.called || out.TurnEnded
	if out.Release {
		m.step(w, r, claim.Event{Kind: claim.Released})
	}
}

func (m *model) giveBack(w *world, r int, recalled bool) {
	m.retain(w, r, func(l *retain.Lease, hold *retain.Hold, out *retain.Effects) {
		l.GiveBack(hold, w.instant(), recalled, out)
	})
}

// yield gives back the leases that a keeper retains, since one of its requests is about to ask for writing.
func (m *model) yield(w *world, k int) {
	for r := range m.requests {
		if q := &w.requests[r]; m.keeperOf[r] == k && q.phase == begun && q.retention.is {
			m.giveBack(w, r, true)
		}
	}
}

// leaveInside ends the use of a lease by a caller.
func (m *model) leaveInside(w *world, r int) {
	q := &w.requests[r]
	x := &q.retention
	x.users--
	x.late = false
	left, settle := true, false
	hold := m.hold(w, r)
	if isAlone(m.flags[r]) {
		left, settle = hold.LeaveAlone()
	} else {
		settle = hold.Leave()
	}
	x.hold = hold.Value()
	if settle || !left {
		m.retain(w, r, func(l *retain.Lease, hold *retain.Hold, out *retain.Effects) { l.Left(hold, w.instant(), left, out) })
	}
	if !left && m.inside(w, r) > 0 { // somebody else is the one inside now
		m.entered(w, r)
	}
	if x.users == 0 && (q.phase != begun || q.claim.State() == claim.Releasing) {
		q.believed = 0 // it was released too soon
	}
}

// endTurn ends the wait of a caller for the one inside, which has left, or which it no longer waits for.
func (m *model) endTurn(w *world, r int, keep bool) {
	x := &w.requests[r].retention
	x.waiting, x.called = false, false
	m.retain(w, r, func(l *retain.Lease, hold *retain.Hold, out *retain.Effects) {
		if l.EndTurn(hold, w.instant(), keep && hold.Certain(), out) {
			x.users++
		}
	})
}

// unused reports, when the timer of a lease fires, whether it is to be given back instead of renewed.
func (m *model) unused(w *world, r int) (unused bool) {
	q := &w.requests[r]
	due := q.claim
	var out claim.Effects
	due.Step(&m.terms, w.instant(), &claim.Event{Kind: claim.Timer, Unused: true}, &out)
	if out.GiveBack {
		q.retention.used = false
		m.retain(w, r, func(l *retain.Lease, hold *retain.Hold, out *retain.Effects) {
			unused = l.Due(hold, w.instant(), ms(ttl), out)
		})
	}
	return unused
}

// renewed handles the reply to a renewal that was answered.
func (m *model) renewed(w *world, r int, recalled bool) {
	m.retain(w, r, func(l *retain.Lease, hold *retain.Hold, out *retain.Effects) {
		l.Renewed(hold, w.instant(), w.requests[r].retention.renewal, recalled, out)
	})
	w.requests[r].retention.renewal = retain.Renewal{}
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
