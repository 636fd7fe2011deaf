package proptest

import (
	"errors"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

// This file is about conversions of a read-write lock's leases. An upgrade is a request with a token of its own, a downgrade is one call.
// The lease goes on: its holder relies on writing from the return of Upgrade to the call of Downgrade, and on reading otherwise.

const (
	// At the server, a lease comes to write by an upgrade that asks or waits and was not given up. It comes to read by a downgrade that names
	// no earlier fence than it has, which raise its fence, or when that upgrade is given up. It ends when it would have ended before. Whoever
	// asks again after the grant finds the same fence.
	asAsked = "a lease writes and reads as its holder asks"
	// A lease that its holder does not use for writing does not write at the server for much longer.
	readsSoon = "a lease that its holder only reads by is soon not for writing"
)

// convertLease converts the lease of the request's origin. It reports whether the process runs then, and whether the lease is converted.
func (q *request) convertLease() (awake, done bool) {
	defer q.cancel()
	w, from := q.w, q.origin
	q.markStarted()
	w.mu.Lock()
	from.converting = true
	w.mu.Unlock()
	if q.extendOrigin > 0 {
		from.extend(q.extendOrigin)
		q.markStarted()
	}
	w.mu.Lock()
	from.writes = false
	w.mu.Unlock()
	fence := from.lease.Fence()
	_, err := w.kind.get(q)
	if !q.p.awaitRunning() {
		return false, false
	}
	q.checkConverted(fence, err)
	return true, err == nil
}

// begins registers a conversion, which is cancelled when its caller's patience is over.
func (q *request) begins(hold time.Duration) {
	q.w.enter(q, hold, false)
	if q.patience > 0 {
		q.w.after(q.patience+211*time.Microsecond, q.cancelWait)
	}
}

// nextConversion returns the conversion that follows soon, or nil. It is another one if the last has succeeded.
func (q *request) nextConversion(done bool) *request {
	w := q.w
	if q.again == 0 || w.isClosing() || q.origin.lease.Err() != nil {
		return nil
	}
	w.mu.Lock()
	q.origin.converting = true
	w.mu.Unlock()
	time.Sleep(w.scaled(time.Duration(q.again) * 7 * time.Millisecond))
	next := w.requestOf(q.p)
	next.use, next.origin, next.patience, next.again = upgrades, q.origin, q.patience, q.again-1
	if done == (q.use == upgrades) {
		next.use = downgrades
	}
	next.begins(q.hold)
	return next
}

// checkConverted checks a call that was to convert a lease, which had that fence.
func (q *request) checkConverted(fence uint64, err error) {
	w, from := q.w, q.origin
	v := w.view()
	w.mu.Lock()
	defer w.mu.Unlock()
	q.returned = true
	from.converting, from.converted = false, time.Now()
	w.noteLocked("%v of %v: %v, fence %d", q, from, err, from.lease.Fence())
	ended := from.lease.Err() != nil // perhaps since the call has returned
	if err != nil {
		from.writes = q.use == downgrades
		from.fenceInDoubt = from.fenceInDoubt || q.use == upgrades
		q.checkNotConverted(err, ended)
	}
	rises := from.lease.Fence() > fence
	switch {
	case ended || err != nil && !rises:
	case err != nil || !rises && q.use == upgrades:
		w.breaksLocked(fences, "%v: %d after %d", q, from.lease.Fence(), fence)
	case !rises:
		from.fenceInDoubt = true
		w.tally["a downgrade is in doubt"]++
		if q.p.neverDegraded() && w.lag == 0 && q.cancelled.IsZero() {
			w.breaksLocked(truth, "%v is in doubt", q)
		}
	default:
		from.writes, from.fenceInDoubt = q.use == upgrades, false
		w.tally["a lease is converted"]++
		if l := v.leases[from.lease.Token()]; l.writes != from.writes && !w.history.unknownLeases[from.lease.Token()] {
			w.breaksLocked(truth, "%v: at the server the lease writes: %v", q, l.writes)
		}
	}
	w.checkBelief(v, from, "after %v", q)
	w.checkBelievers()
}

// checkNotConverted checks the error of a call that was to convert a lease. The caller holds the mutex.
func (q *request) checkNotConverted(err error, ended bool) {
	w := q.w
	lost := errors.Is(err, lockkeeper.ErrLost) || errors.Is(err, lockkeeper.ErrReleased)
	switch want := q.ctx.Err(); {
	case w.closing, ended && lost, !lost && q.unacknowledged(err):
	case want != nil && errors.Is(err, want): // if it is lost, it ends when it is known who has broken it
	case q.broken && errors.Is(err, lockkeeper.ErrNotAcquired):
		w.tally["a broken upgrade ends"]++
	case q.use == upgrades && errors.Is(err, rwlock.ErrUpgradeConflict):
		w.tally["upgrades conflict"]++
		for _, other := range w.requests {
			if other.use == upgrades && other.started && other.origin.first() != q.origin.first() {
				return
			}
		}
		w.breaksLocked(truth, "%v: %v", q, err)
	case q.use == upgrades && q.origin.adopts != nil && errors.Is(err, lockkeeper.ErrInvalid):
		// It wrote when it was adopted: the release of an upgrade that was given up, or a downgrade, had not arrived.
	case lost || w.degradedAt.IsZero():
		w.breaksLocked(truth, "%v: %v", q, err)
	}
}

// checkBelief checks that the server has the lease that a holder considers held. The caller holds the mutex.
func (w *world) checkBelief(v *view, q *request, format string, args ...any) {
	if !q.believesHeld() || w.history.unknownLeases[q.lease.Token()] {
		return
	}
	l, held := v.leases[q.lease.Token()]
	fence := q.lease.Fence()
	switch {
	case !held:
		w.breaksLocked(belief, "%v, "+format, append([]any{q}, args...)...)
	case q.writes && !l.writes:
		w.breaksLocked(belief, "%v does not write, "+format, append([]any{q}, args...)...)
	case l.fence < fence || l.fence > fence && !q.converting && !q.fenceInDoubt:
		w.breaksLocked(fences, "%v has fence %d, and %d at the server, "+format, append([]any{q, fence, l.fence}, args...)...)
	}
}

// checkConversion checks a lease that was converted, or whose conversion was undone. The caller holds the mutex.
func (w *world) checkConversion(s *step, token string) {
	h, was, l, upgrade := &w.history, s.before.leases[token], s.after.leases[token], s.after.upgrade
	_, stood := s.before.position(upgrade)
	asked := s.after.upgradeOf == token && (stood || s.askers[upgrade])
	if l.fence != was.fence || l.writes || s.script == "downgrade" {
		w.checkFence(s, token)
	}
	if l.ends > was.ends || l.ends < was.ends && w.setBack == 0 {
		w.breaksLocked(asAsked, "%s ends at %d, not at %d", w.tokenName(token), l.ends, was.ends)
	}
	switch {
	case l.writes && (!asked || was.writes && s.before.upgrade == upgrade):
		w.breaksLocked(asAsked, "%s writes by %s of %s", w.tokenName(token), s.script, w.tokenName(s.token))
	case l.writes && (h.givenUp[upgrade] || time.Since(h.brokenAt[upgrade]) < tombstoneTTL-time.Second && !h.brokenAt[upgrade].IsZero()):
		w.breaksLocked(grants, "%s was given up and is granted by %s", w.tokenName(upgrade), s.script)
	case l.writes && !s.askers[upgrade] && !w.connected(s.before, upgrade):
		w.breaksLocked(grants, "%s is granted by %s and cannot be notified", w.tokenName(upgrade), s.script)
	case l.writes:
		w.tally["an upgrade is granted"]++
	case s.script == "downgrade" && s.token == token && was.fence <= s.fence:
	case s.before.upgradeOf == token && (slices.Contains(s.released, s.before.upgrade) || s.script == "break" && s.token == s.before.upgrade):
		w.tally["an upgrade is given up that was granted"]++
	case was.writes || !asked: // else it was undone
		w.breaksLocked(asAsked, "%s reads by %s of %s", w.tokenName(token), s.script, w.tokenName(s.token))
	}
}

// convertsOrEnds reports whether a request is a downgrade, or an upgrade whose lease the server does not have. The caller holds the mutex.
func (w *world) convertsOrEnds(v *view, q *request) bool {
	if q.origin == nil {
		return false
	}
	_, held := v.leases[q.origin.lease.Token()]
	return q.use == downgrades || !held
}

// checkReadsLocked checks that the server does not have a lease as a writer's for long whose holder only reads.
func (w *world) checkReadsLocked(v *view, q *request) {
	if !q.believesHeld() || q.writes || q.converting || q.adopts != nil || !q.p.isSteady() || w.history.unknownLeases[q.lease.Token()] {
		return
	}
	if took := time.Since(q.converted); v.leases[q.lease.Token()].writes && took > w.settling()+slack+4*w.lag {
		w.breaksLocked(readsSoon, "%v, after %v", q, took)
	}
}
