package proptest

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"pgregory.net/rapid"
)

// This file is about what a program may do with a lease or a limit besides holding it. Each pair of that has to occur, with replies
// that are lost: pairsOf has those that many schedules of a primitive reach.
const (
	extends   = "Extend"
	converts  = "conversion"
	adopts    = "Adopt"
	lifetimes = "MaxLifetime"
	acks      = "ReplicaAck"
	sets      = "SetLimit"
	halts     = "Pause"
	breaking  = "Break"
	closes    = "Close"
	notes     = "note"
)

// features is all of them. Those of a limit, or of all keepers, are of the world, the others of a lease.
var features = []string{extends, converts, adopts, lifetimes, acks, sets, halts, breaking, closes, notes}

// withoutPermits is the features that locks of one holder do not have.
var withoutPermits = []string{converts, sets, halts}

// featuresOf returns the features of a primitive that has all but these.
func featuresOf(without ...string) []string {
	return slices.DeleteFunc(slices.Clone(features), func(f string) bool { return slices.Contains(without, f) })
}

// pairsOf returns the pairs of these features.
func pairsOf(all []string) (pairs []string) {
	for i, a := range all {
		for _, b := range all[:i] {
			pairs = append(pairs, pair(a, b))
		}
	}
	return pairs
}

func pair(a, b string) string { return "both " + min(a, b) + " and " + max(a, b) }

// focusOn draws two features that are used often in a world, so that all pairs meet.
func (w *world) focusOn(r *rapid.T) {
	all := w.run.features
	if len(all) == 0 || rapid.IntRange(0, 2).Draw(r, "none is in focus") == 0 {
		return
	}
	w.focus = []string{draw(r, all, "in focus"), draw(r, all, "and")}
}

func (w *world) inFocus(feature string) bool { return slices.Contains(w.focus, feature) }

// now draws whether to use a feature: once in so many times, or every second time if it is in focus.
func (w *world) now(r *rapid.T, feature string, of int) bool {
	if w.inFocus(feature) {
		of = 2
	}
	return rapid.IntRange(1, of).Draw(r, feature) == 1
}

// usesLocked notes that a feature is used for a request, its lease or the one that it has adopted.
func (w *world) usesLocked(q *request, feature string) {
	seen := slices.Clone(w.used)
	for of := q; of != nil; of = of.adopts {
		seen = append(seen, of.used...)
	}
	w.countPairsLocked(seen, feature)
	q.used = append(q.used, feature)
}

// usesInAll notes that a feature is used for all leases and waiters there are, and those to come.
func (w *world) usesInAll(feature string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.countPairsLocked(w.used, feature)
	for _, q := range w.requests {
		if !q.returned || q.believesHeld() {
			w.usesLocked(q, feature)
		}
	}
	w.used = append(w.used, feature)
}

func (w *world) countPairsLocked(with []string, feature string) {
	with = slices.Sorted(slices.Values(with))
	for _, f := range slices.Compact(with) {
		if f != feature {
			w.tally[pair(f, feature)]++
		}
	}
}

// lifetime returns the MaxLifetime of the request's lease; 0: it has none.
func (q *request) lifetime() time.Duration { return time.Duration(q.lifetimes) * q.ttl() }

// unacknowledged reports whether a call may have failed with this error because a replica had to acknowledge its grant: its process, the
// server or the network was not well, so that the answer was late or lost. The caller holds the mutex.
func (q *request) unacknowledged(err error) bool {
	var not *lockkeeper.NotAcknowledgedError
	return q.w.replicas && (q.w.lag > 0 || !q.p.neverDegraded()) && (errors.As(err, &not) || errors.Is(err, lockkeeper.ErrLost))
}

// What is promised of these besides.
const (
	// A lease is not held for longer than its MaxLifetime, and is not lost because of it in the first half of that.
	lifetimeEnds = "a lease ends with its MaxLifetime"
	// A lease has the note of the call that acquired it, and so has an upgrade of it that waits.
	noteStays = "a lease keeps its note"
	// A lease lasts for as long as its last Extend says, also if it is converted then; if it is renewed, half of that is always left.
	extensionLasts = "a lease lasts for as long as it was extended"
)

// checkLifetimeLocked checks that the lease of a request that is believed to be held has not lasted for too long.
func (w *world) checkLifetimeLocked(q *request) {
	if q.lifetimes > 0 && q.believesHeld() && q.p.state != frozen && time.Since(q.heldSince) > q.lifetime() {
		w.breaksLocked(lifetimeEnds, "%v still holds it %v after it was granted, and it was to last for %v", q, time.Since(q.heldSince), q.lifetime())
	}
}

// extendedLocked notes how an Extend has ended.
func (w *world) extendedLocked(q *request, d time.Duration, began time.Time, err error) {
	if err != nil {
		return
	}
	q.extended = max(q.extended, d)
	if until := began.Add(d); until.After(q.until) {
		q.until = until
	}
	if q.lifetimes > 0 && q.until.After(q.heldSince.Add(q.lifetime())) {
		w.breaksLocked(lifetimeEnds, "%v is extended to %v from then on, although it was to last for %v", q, d, q.lifetime())
	}
}

// checkExtensionLocked checks that a lease lasts for as long as it was extended, whatever was asked for before or after.
func (w *world) checkExtensionLocked(v *view, q *request) {
	if q.extended == 0 || !q.believesHeld() || q.releaseRequested || q.broken {
		return
	}
	l, held := v.leases[q.lease.Token()]
	if !held || w.history.unknownLeases[q.lease.Token()] {
		return
	}
	left, want := time.Duration(l.ends-v.now)*time.Microsecond, time.Until(q.until)
	if !q.fixed && q.lifetimes == 0 && q.p.neverDegraded() {
		want = max(want, q.extended/2-4*w.lag)
	}
	if left < want-2*time.Millisecond {
		w.breaksLocked(extensionLasts, "%v ends in %v, not in %v", q, left, want)
	} else {
		w.tally["an extended lease lasts"]++
	}
}

// livedLocked reports whether a lease was lost because its MaxLifetime is over.
func (w *world) livedLocked(q *request) bool {
	if !strings.Contains(q.lease.Err().Error(), "maximum lifetime") {
		return false
	}
	w.tally["a lease is lost by its MaxLifetime"]++
	if q.lifetimes == 0 || !w.quick() && time.Since(q.heldSince) < q.lifetime()/2 && q.p.neverDegraded() {
		w.breaksLocked(lifetimeEnds, "%v has lost it after %v, and it was to last for %v", q, time.Since(q.heldSince), q.lifetime())
	}
	return true
}

// checkNoteLocked checks the note of a lease that was granted.
func (w *world) checkNoteLocked(q *request) {
	if t, _ := protocol.ParseToken(q.lease.Token()); t.Note != q.first().note {
		w.breaksLocked(noteStays, "%v has %q, want %q", q, t.Note, q.first().note)
	}
}

// checkUpgradeNoteLocked checks the note of an upgrade that waits.
func (w *world) checkUpgradeNoteLocked(q *request) {
	if t, _ := protocol.ParseToken(q.token); t.Note != q.origin.first().note {
		w.breaksLocked(noteStays, "%v has %q, want %q", q, t.Note, q.origin.first().note)
	}
}
