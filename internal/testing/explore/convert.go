package explore

import (
	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
)

// This file has what a driver does to convert a lease. A request with flag u, of which it is the origin, makes it write, and a call of
// downgrade.lua makes it read.

// writes reports whether the holder of a request's lease relies on writing.
func (m *model) writes(w *world, r int) bool {
	return (m.flags[r] != protocol.FlagRead) != w.requests[r].converted
}

// excludes reports whether nobody may rely on both leases. Whoever was told that a lease was broken may be told before its holder.
func (m *model) excludes(w *world, a, b int) bool {
	switch {
	case w.requests[a].broken || w.requests[b].broken:
		return false
	case m.permits[a] > 0:
		return m.permits[a]+m.permits[b] > semaphoreLimit
	}
	return m.writes(w, a) || m.writes(w, b)
}

// mayConvert reports whether a request may begin, as far as its origin is concerned.
func (m *model) mayConvert(w *world, r int) bool {
	o := m.origin[r] - 1
	if o < 0 {
		return true
	}
	q := &w.requests[o]
	return m.holds(w, o) && !m.writes(w, o) && q.downgrade.call == 0 && !m.converts(w, o)
}

// mayDowngrade reports whether the holder of a lease may make it read.
func (m *model) mayDowngrade(w *world, r int) bool {
	return m.set.Downgrade != nil && m.holds(w, r) && m.writes(w, r)
}

func (m *model) holds(w *world, r int) bool {
	return w.requests[r].phase == begun && w.requests[r].claim.Active()
}

// converts reports whether a request waits that this lease writes.
func (m *model) converts(w *world, r int) bool {
	for next := range m.requests {
		if q := &w.requests[next]; m.origin[next] == r+1 && q.phase == begun && q.claim.Pending() {
			return true
		}
	}
	return false
}

// hasUpgraded reports whether a request is the one by which its origin writes.
func (m *model) hasUpgraded(w *world, r int) bool {
	o := m.origin[r] - 1
	return o >= 0 && w.requests[o].upgrade == int8(r+1) && m.holds(w, o) && m.writes(w, o)
}

// convert tells the origin of a request how that has ended, and the request that its origin has.
func (m *model) convert(w *world, r int, out *claim.Effects) {
	for next := range m.requests {
		if m.origin[next] == r+1 && out.End && w.requests[next].claim.Pending() {
			m.step(w, next, claim.Event{Kind: claim.Cancelled})
		}
	}
	o := m.origin[r] - 1
	if o < 0 || !out.Deliver {
		return
	}
	switch c := &w.requests[r].claim; {
	case c.State() == claim.Permitted && m.holds(w, o):
		w.requests[o].converted, w.requests[o].upgrade = m.flags[o] == protocol.FlagRead, int8(r+1)
	case c.State() == claim.Permitted:
		m.step(w, r, claim.Event{Kind: claim.Released, Unused: true})
	case c.Reason() == claim.ByDenial: // the server does not know the lease
		m.step(w, o, claim.Event{Kind: claim.Refused})
	}
}

// giveUp makes the holder of a lease rely on reading again, because the request by which it writes is given up.
func (m *model) giveUp(w *world, r int) {
	if m.hasUpgraded(w, r) {
		o := &w.requests[m.origin[r]-1]
		o.converted, o.upgrade = !o.converted, 0
	}
}

// downgrade sends a call that makes a lease read. Its holder relies on no more from now on.
func (m *model) downgrade(w *world, r int) {
	q := &w.requests[r]
	c := call{script: downgrade, requests: 1 << r, fence: q.claim.Fence(), upgrade: q.upgrade}
	if q.upgrade > 0 {
		by := &w.requests[q.upgrade-1].claim
		if c.fence = by.Fence(); !by.InDoubt() {
			c.upgrade = 0
		}
	}
	q.converted = !q.converted
	q.downgrade = slot{call: m.srv.call(c), sent: w.tick}
}

func (m *model) answerDowngrade(w *world, r int) {
	q := &w.requests[r]
	a := parsed(protocol.ParseDowngradeReply(m.srv.replies[q.downgrade.reply]))
	q.downgrade = slot{}
	m.endUpgrade(w, r, a.Held)
	if !a.Held {
		m.step(w, r, claim.Event{Kind: claim.Refused})
	}
}

// downgradeFailed handles that a call was not answered, of which a late copy is under way. It is repeated in the background, where nobody
// waits for the answer.
func (m *model) downgradeFailed(w *world, r int, id int32) {
	m.leaveLate(w, &slot{call: id})
	m.endUpgrade(w, r, false)
}

// endUpgrade forgets the request by which a lease has written; known is as for finish.
func (m *model) endUpgrade(w *world, r int, known bool) {
	if u := w.requests[r].upgrade; u > 0 {
		w.requests[r].upgrade = 0
		m.finish(w, int(u-1), known)
	}
}
