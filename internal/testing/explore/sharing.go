package explore

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/share"
)

// This file has the leases that the callers of a process share for Linger. Who is inside, and whether others may enter, is decided by a
// share.Gate. Package share, whose names and leases have mutexes and pointers, makes the steps that this file makes, in the same order:
// shared.grant is grant, shared.enter is enter, Lease.Release with shared.leave is leaveInside, shared.close is closeGate, and
// exclusion.begin and name.leave are endSharing and what leaveInside does for a semaphore.

// sharing is what a process has of a lease with Linger. The zero value is that of one that it has not learned of.
type sharing struct {
	granted bool // its caller has learned of it
	gate    share.Value
	ends    claim.Instant // when nobody may enter any more
	users   int8          // callers that rely on the lease
	entered int8          // the last tick at which somebody entered in a world without faults, counted from 1
	// For the promises: somebody entered after the deadline, after Linger, or past a caller whom the lease excludes.
	late, overdue, passing bool
}

// linger lies between two ticks, and ends after the lease if that was granted by a slow reply.
const linger = 3 * tick / 2

// maxInside bounds the callers that are inside by one lease.
const maxInside = 2

// isAlone reports whether one caller is inside at a time by a lease with these flags.
func isAlone(flags string) bool { return flags != protocol.FlagRead }

// gate calls do with the Gate of a lease. The clock stands still during a search, so the world began so long ago.
func (w *world) gate(x *sharing, do func(g *share.Gate)) {
	var g share.Gate
	g.Restore(w.epoch(), x.gate)
	do(&g)
	x.gate = g.Value()
}

func (w *world) epoch() time.Time { return time.Now().Add(-time.Duration(w.instant())) }

// sharingSteps visits the steps of a lease with Linger.
func (m *model) sharingSteps(w *world, r int, try func(stepKind, int)) {
	q := &w.requests[r]
	x := &q.sharing
	switch {
	case !x.granted && (q.claim.Active() || q.claim.State() == claim.Lost):
		try(stepGrant, r)
		return
	case !x.granted:
		return
	case x.users > 0 && !(w.calm && m.converts(w, r)):
		try(stepLeave, r)
	}
	tried := *x
	w.gate(&tried, func(g *share.Gate) {
		if g.IsOpen() && w.instant() >= x.ends {
			try(stepLinger, r)
		}
		if (w.entries > 0 || w.calm && x.entered <= w.tick) && x.users < maxInside && g.Enter() {
			try(stepEnter, r)
		}
	})
}

// grant lets others share a lease that was granted, with the caller whom it was granted inside.
func (m *model) grant(w *world, r int) {
	q := &w.requests[r]
	x := &q.sharing
	x.granted, x.users, x.ends = true, 1, min(w.instant().Add(ms(linger)), q.claim.Deadline())
	shares := !m.isExcluded(w, r)
	for other := range m.requests {
		if m.lingers[other] && m.keeperOf[other] == m.keeperOf[r] && m.permits[other] == 0 {
			w.gate(&w.requests[other].sharing, func(g *share.Gate) { shares = shares && !g.IsOpen() })
		}
	}
	w.gate(x, func(g *share.Gate) {
		g.Admit(w.epoch(), time.Duration(x.ends), isAlone(m.flags[r]), shares)
	})
	if q.claim.State() == claim.Lost {
		m.closeGate(w, r)
	}
}

// enter lets a caller inside.
func (m *model) enter(w *world, r int) {
	q := &w.requests[r]
	x := &q.sharing
	if x.entered = w.tick + 1; !w.calm {
		w.entries--
		x.entered = 0
	}
	w.gate(x, func(g *share.Gate) { g.Enter() })
	x.users++
	x.late = x.late || w.instant() >= q.claim.Deadline()
	x.overdue = x.overdue || w.instant() >= x.ends
	x.passing = x.passing || m.isExcluded(w, r)
}

// leaveInside ends the use of a lease by a caller. The last one releases it.
func (m *model) leaveInside(w *world, r int) {
	x := &w.requests[r].sharing
	if x.users--; x.users == 0 {
		x.late = false
	}
	last := false
	w.gate(x, func(g *share.Gate) {
		if !g.InTime() || m.permits[r] > 0 && m.isExcluded(w, r) {
			g.Close()
		}
		last = g.Leave()
	})
	if last {
		m.step(w, r, claim.Event{Kind: claim.Released})
	}
}

// closeGate lets nobody enter any more, and releases the lease if nobody is inside.
func (m *model) closeGate(w *world, r int) {
	empty := false
	w.gate(&w.requests[r].sharing, func(g *share.Gate) { _, empty = g.Close() })
	if empty {
		m.step(w, r, claim.Event{Kind: claim.Released})
	}
}

// exclusive reports whether a request ends the sharing in its process: for writing, or for permits that it waits for at the server.
func (m *model) exclusive(w *world, r int) bool {
	q := &w.requests[r]
	if q.phase != begun || !q.claim.Pending() {
		return false
	}
	return m.flags[r] == protocol.FlagWrite || m.flags[r] == protocol.FlagUpgrade || m.permits[r] > 0 && q.queued
}

// isExcluded reports whether a caller of its process keeps a request's lease from being shared.
func (m *model) isExcluded(w *world, r int) bool {
	for other := range m.requests {
		if m.keeperOf[other] == m.keeperOf[r] && m.exclusive(w, other) {
			return true
		}
	}
	return false
}

// endSharing ends the sharing of a process, since a caller is about to ask for writing or waits for permits. Permits that somebody has are
// closed when they are left.
func (m *model) endSharing(w *world, k int) {
	for r := range m.requests {
		if x := &w.requests[r].sharing; m.keeperOf[r] == k && x.granted && (m.permits[r] == 0 || x.users == 0) {
			m.closeGate(w, r)
		}
	}
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
