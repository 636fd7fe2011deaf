package explore

import (
	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
)

// This file has what a driver does for a request that is to replace a lease, its origin.

// mayConvert reports whether a request may begin, as far as the lease is concerned that it is to replace.
func (m *model) mayConvert(w *world, r int) bool {
	o := m.origin[r]
	if o == 0 {
		return true
	}
	q := &w.requests[o-1]
	return q.phase == begun && q.claim.Active() && q.claim.State() != claim.Converting && q.extend.call == 0 &&
		(!m.lingers[o-1] || q.sharing.users == 1)
}

// holdsOrigin reports whether the holder still has the lease that a request was to replace.
func (m *model) holdsOrigin(w *world, r int) bool {
	o := m.origin[r]
	return o > 0 && w.requests[o-1].phase == begun && w.requests[o-1].claim.Active()
}

// converts reports whether a request to replace this lease is under way.
func (m *model) converts(w *world, r int) bool {
	for next := range m.requests {
		if q := &w.requests[next]; m.origin[next] == r+1 && q.phase == begun && q.claim.Pending() {
			return true
		}
	}
	return false
}

// convert tells the origin of a request what has become of the conversion, and the request that its origin has ended.
func (m *model) convert(w *world, r int, out *claim.Effects) {
	q := &w.requests[r]
	for next := range m.requests {
		if x := &w.requests[next]; m.origin[next] == r+1 && out.End && x.phase == begun && x.claim.Pending() {
			m.step(w, next, claim.Event{Kind: claim.Cancelled})
		}
	}
	o := m.origin[r] - 1
	if o < 0 {
		q.weak = q.weak || q.claim.State() == claim.Converting
		return
	}
	reason := q.claim.Reason()
	switch {
	case out.Found && !m.holdsOrigin(w, r):
		m.step(w, r, claim.Event{Kind: claim.Released, Unused: true})
	case out.Found, out.Deliver && q.claim.Active():
		m.step(w, o, claim.Event{Kind: claim.Replaced})
	case out.Deliver && q.claim.State() == claim.Releasing:
		m.step(w, o, claim.Event{Kind: claim.ConversionLeft})
	case out.Finished && (reason == claim.ByConversion || reason == claim.ByDoubt):
		m.step(w, o, claim.Event{Kind: claim.Failed})
	case out.Deliver, out.Finished:
		m.step(w, o, claim.Event{Kind: claim.ConversionEnded})
		if reason == claim.ByDenial { // the server does not know it
			m.step(w, o, claim.Event{Kind: claim.Refused})
		}
	}
}

// use returns what the holder of a request's lease relies on: reading or writing.
func (m *model) use(w *world, r int) string {
	switch flags := m.flags[r]; {
	case w.requests[r].weak, flags == protocol.FlagDowngrade:
		return protocol.FlagRead
	case flags == protocol.FlagUpgrade:
		return protocol.FlagWrite
	default:
		return flags
	}
}

// excludes reports whether nobody may rely on both leases. Whoever was told that a lease was broken may be told before its holder.
func (m *model) excludes(w *world, a, b int) bool {
	if m.origin[a] == b+1 || m.origin[b] == a+1 || w.requests[a].broken || w.requests[b].broken {
		return false
	}
	if m.permits[a] > 0 {
		return m.permits[a]+m.permits[b] > semaphoreLimit
	}
	return m.exclude == nil || m.exclude(m.use(w, a), m.use(w, b))
}
