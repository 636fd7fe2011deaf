package explore

import (
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/retain"
)

// retention is what a keeper has of a request whose lease it retains: one with the flags retained. The zero value is that of other requests.
type retention struct {
	engine.RetentionRecord
	is        bool // it is a retention
	opened    bool // the caller whose request brought the lease has learned of it
	open      bool // readers may enter, as far as the keeper has not heard of a recall
	confirmed bool // a recall since would have been received; see retain.Hold.Confirm
	asked     bool // the same, of the renewal that is under way
	used      bool // since its timer ran
	usedAt    int8 // tick after that at which its timer found it used; 0: never
	inside    int8 // readers
	// What no keeper knows, for the promises.
	lost    bool // a message about its recall was lost on a subscription that lasts
	late    bool // a reader entered after the deadline
	passing bool // a reader entered after a recall that the keeper must have known
}

// retained are the flags of a read lease that its process retains.
const retained = protocol.FlagRead + protocol.FlagRetained

// maxInside bounds the readers that are inside by one lease.
const maxInside = 2

// retentionSteps visits the steps of a request that has a retention.
func (m *model) retentionSteps(w *world, r int, try func(stepKind, int)) {
	q := &w.requests[r]
	x := &q.retention
	if x.inside > 0 {
		try(stepLeave, r)
	}
	if (q.claim.Active() || q.claim.State() == claim.Lost) && !x.opened {
		try(stepOpen, r)
	}
	if !q.claim.Active() {
		return
	}
	mayEnter := w.entries > 0 && x.inside < maxInside || w.calm && !x.used && m.somebodyWaits(w)
	if mayEnter && m.rules.enter(x.open, m.hears(w, r), retain.InTime(time.Duration(w.instant()), time.Duration(q.claim.Deadline()))) {
		try(stepEnter, r)
	}
}

// somebodyWaits reports whether a live request waits for a grant. As long as one does, readers keep coming in a world without faults.
func (m *model) somebodyWaits(w *world) bool {
	for r := range m.requests {
		if q := &w.requests[r]; q.phase == begun && q.claim.Pending() && m.alive(w, r) {
			return true
		}
	}
	return false
}

// hears reports whether the keeper of a retention would have received a recall, by the epochs that the engine would have.
func (m *model) hears(w *world, r int) bool {
	current := uint64(2)
	if w.keepers[m.keeperOf[r]].subscribed {
		current = 3
	}
	confirmed := current
	if !w.requests[r].retention.confirmed {
		confirmed -= 2
	}
	return retain.Hears(confirmed, current)
}

// subscriptionChanged notes that the subscription of a keeper has begun or ended.
func (m *model) subscriptionChanged(w *world, k int, restored bool) {
	for r := range m.requests {
		q := &w.requests[r]
		if !q.retention.is || m.keeperOf[r] != k {
			continue
		}
		q.retention.confirmed, q.retention.asked = false, false
		if restored && q.retention.opened {
			m.step(w, r, claim.Event{Kind: claim.RenewalWanted}) // it asks whether it was recalled
		}
	}
}

// openLease begins to grant reads by the lease, with its first reader inside.
func (x *retention) openLease() {
	x.open = x.Granted()
	x.opened, x.inside, x.used = true, 1, true
}

// enter admits a reader inside the process.
func (m *model) enter(w *world, r int) {
	if !w.calm {
		w.entries--
	}
	q := &w.requests[r]
	x := &q.retention
	x.inside++
	x.used = true
	x.late = x.late || w.instant() >= q.claim.Deadline()
	x.passing = x.passing || m.srv.states[w.server].recalled&(1<<r) != 0 && !x.lost && !m.recallUnderWay(w, r)
}

// recallUnderWay reports whether a message about the recall of a lease is on its way.
func (m *model) recallUnderWay(w *world, r int) bool {
	for _, id := range w.messages {
		if id != 0 && m.recalls(id)&(1<<r) != 0 {
			return true
		}
	}
	return false
}

// recalls returns the bits of the requests whose leases a message recalls.
func (m *model) recalls(id int32) (bits uint8) {
	if !strings.HasSuffix(m.srv.messages[id].text, " recall") {
		return 0
	}
	for _, r := range m.srv.addressed(id) {
		bits |= 1 << r
	}
	return bits
}

// giveBack is what the engine does when somebody waits whom the lease excludes, and when its time has come for another reason.
func (m *model) giveBack(w *world, r int, recalled bool) {
	x := &w.requests[r].retention
	x.GiveBack(recalled)
	x.open = false
	m.settle(w, r)
}

// yield gives back the leases that a keeper retains, since one of its requests is about to ask for writing.
func (m *model) yield(w *world, k int) {
	for r := range m.requests {
		if q := &w.requests[r]; m.keeperOf[r] == k && q.phase == begun && q.retention.is {
			m.giveBack(w, r, true)
		}
	}
}

// renewed handles the reply to a renewal.
func (m *model) renewed(w *world, r int, recalled bool) {
	x := &w.requests[r].retention
	if !recalled {
		x.confirmed = x.asked
	} else if m.rules.recallReplied() {
		m.giveBack(w, r, true)
	}
	x.asked = false
}

// settle releases the lease if its keeper decides so.
func (m *model) settle(w *world, r int) {
	q := &w.requests[r]
	if q.phase == begun && (q.claim.Active() || q.claim.State() == claim.Lost) && m.rules.settle(&q.retention.RetentionRecord, int(q.retention.inside)) {
		m.step(w, r, claim.Event{Kind: claim.Released})
	}
}

// leaveInside ends the use of a lease by a reader.
func (m *model) leaveInside(w *world, r int) {
	x := &w.requests[r].retention
	x.inside--
	x.late = false
	m.settle(w, r)
	if q := &w.requests[r]; x.inside == 0 && (q.phase != begun || q.claim.State() == claim.Releasing) {
		q.believed, x.late = 0, false // it was released too soon
	}
}

// onTimer is what the engine does when the timer of a lease fires: it reports whether nobody has used the lease lately.
func (x *retention) onTimer(w *world) (unused bool) {
	if !x.is {
		return false
	}
	if x.used || x.inside > 0 || x.usedAt == 0 {
		x.usedAt = w.tick + 1
	}
	x.used = false
	if retain.Tick(ms(int64(w.tick+1-x.usedAt)*tick), ms(ttl), int(x.inside)) == retain.GiveBack {
		return true
	}
	x.asked = true
	return false
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
