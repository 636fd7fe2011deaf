package proptest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/lua"
)

// The promises, whatever happens to processes, network and server, with their exceptions after faults.
//
// A waiter is connected while the server can notify it of a grant: its process is subscribed, and its heartbeat has
// not lapsed. It is healthy while its process runs, is connected and has been for long enough to have sent a
// heartbeat, and the server is healthy. The first promises are checked after every script, as steps from the state
// before it.
const (
	// At each moment of the server's clock, the leases may be held together: one; or some readers, or one writer.
	// The same is true of the holders that consider their lease held, from the return of the call to that of Release
	// or the end of the lease, except for leases that the server has lost with its data, or that expired because its
	// clock was set forward: fences exist for them.
	exclusion = "incompatible leases are never held at once"
	// A lease that its holder considers held is held at the server, with the same exceptions; and it writes there if its
	// holder relies on that.
	belief = "a holder considers its lease lost before the server does"
	// Each lease has a larger fence than those before it, also after data was lost, but not if the clock was set
	// back as well.
	fences = "fences rise"
	// No request is granted a lease while a connected waiter precedes it in the queue and is not granted one in the
	// same step. The primitive defines who precedes whom.
	order = "waiters are served in order"
	// A connected waiter leaves the queue only by a grant or by its own release, and its place does not change.
	place = "a waiter keeps its place"
	// A waiter has a heartbeat in the queue beside its token, and nothing is left of the others.
	pairs = "a waiter and its heartbeat are queued and removed together"
	// Leases are granted to requests that ask or wait, for no longer than requested; to a request that does not ask
	// for no longer than its heartbeat is valid, and only if it can be notified. Requests that were given up are
	// granted nothing, until data is lost or the clock set forward: tombstones stop late duplicates of them.
	grants = "leases are granted as requested"
	// A key that a release of a mutex leaves free for other libraries is granted to nobody meanwhile, and it is left free for a tenth of
	// the time at most. Then progress and live are as for any other free lock.
	leftFree = "a key that is left free stays so, and not for long"
	// A lease ends by its own release or by expiry.
	ends = "no request ends the lease of another"

	// A waiter that was healthy, and away for too short for any heartbeat to lapse, has its old place when it
	// recovers, unless a duplicate of its request arrived meanwhile.
	comeback = "a waiter that was away for a moment keeps its place"
	// With a healthy waiter: the connected waiter that can be granted a lease is granted it within a heartbeat
	// interval, even if a message was lost or a lease has expired. When all faults have ended, all waiters are
	// granted it in turn, as soon as unused leases have expired: after the heartbeat timeout or their ttl.
	progress = "the next waiter is granted the lock in time"
	// No call waits for something that never happens. In a process that runs and that has been healthy, together
	// with the server, for the settling time (the maximum backoff, the client's timeout, and a heartbeat interval):
	// every call that does not wait for others, such as a try or an adoption, has returned after the settling time;
	// every other waits in the queue or holds. At the server: while a request asks that has had this time, the lock
	// is not free for as long. When all faults have ended, this is true of all; progress says when they are granted
	// the lock. Closing a keeper ends soon after its cleanup, see Close.
	live = "no call waits forever"
	// No request is repeated without a pause: at one instant there are at most a few messages for each request.
	pace = "no busy loop"
	// A call returns when its context ends.
	bounded = "a call returns when its context has ended"
	// Results of calls are true: a request that is granted a lease has it at the server, fails only for the reported
	// reason, and releases the lease. A try succeeds if the lock is free and nobody waits, and fails if the lock
	// cannot be granted.
	truth = "results of calls are true"
	// A lease that is renewed, by a process that was never degraded on a server that was never degraded, is not
	// lost.
	kept = "a lease lasts"
	// A request that was broken, of a process that was never degraded, ends as soon as its keeper can receive the message.
	told = "who is broken is told"
	// After all processes are closed nothing remains: at once except metadata if there were no faults; otherwise
	// when leases, heartbeats and tombstones have expired. In the end the metadata expires, too. The bubble checks
	// that no goroutine is left.
	nothing = "nothing remains"
)

// checkStep checks what a script has done. The caller holds the mutex.
func (w *world) checkStep(s *step) {
	var fresh []string // and converted
	for token, l := range s.after.leases {
		was, had := s.before.leases[token]
		if !had || w.kind.scripts() == lua.RWLock && (was.fence != l.fence || was.writes != l.writes) {
			fresh = append(fresh, token)
		}
		if !had || was.ends+1000 < l.ends {
			if q := w.requestLocked(token); q != nil && l.ends > s.after.now+q.lasts().Microseconds()+1000 {
				w.breaksLocked(grants, "%s lasts %d µs", w.tokenName(token), l.ends-s.after.now)
			}
		}
	}
	slices.SortFunc(fresh, func(a, b string) int { return cmp.Compare(s.after.leases[a].fence, s.after.leases[b].fence) })
	if !w.kind.together(w, s.after) {
		w.breaksLocked(exclusion, "at the server, after %s: %v", s.script, w.holdersOf(s.after))
	}
	for token, l := range s.before.leases {
		if _, held := s.after.leases[token]; !held && l.ends > s.after.now+1000 && !slices.Contains(s.released, token) &&
			!(s.script == "break" && s.token == token) {
			w.breaksLocked(ends, "that of %s, by %s of %s", w.tokenName(token), s.script, w.tokenName(s.token))
		}
	}
	if s.after.odd != "" {
		w.breaksLocked(pairs, "only one of the two of %s is there after %s", w.tokenName(s.after.odd), s.script)
	}
	for _, y := range s.before.queue {
		at, stands := s.after.position(y.token)
		_, granted := s.after.leases[y.token]
		switch {
		case stands && at != y.at && s.before.lapse[y.token] > s.before.now: // otherwise it was outside the queue, perhaps with the whole queue
			w.breaksLocked(place, "%s was moved from %.0f to %.0f by %s", w.tokenName(y.token), y.at, at, s.script)
		case !stands && !granted && s.token != y.token && w.connected(s.before, y.token) && !w.kind.excused(w, s, y.token):
			w.breaksLocked(place, "%s was removed from the queue by %s", w.tokenName(y.token), s.script)
		}
	}
	for _, token := range fresh {
		if _, had := s.before.leases[token]; had {
			w.checkConversion(s, token)
		} else {
			w.checkGrant(s, token)
		}
	}
	w.kind.stepped(w, s)
	for _, q := range w.requests {
		w.checkBelief(s.after, q, "after %s of %s", s.script, w.tokenName(s.token))
	}
}

// checkPace counts the scripts at one instant. A loop that would never end, because replies take no virtual time,
// ends the schedule here. The caller holds the mutex.
func (w *world) checkPace() {
	h := &w.history
	if now := time.Now(); !now.Equal(h.instant) {
		h.instant, h.asked = now, 0
	}
	if h.asked++; h.asked == 2000+20*len(w.requests) {
		w.breaksLocked(pace, "%d scripts at one instant", h.asked)
		for _, line := range w.log {
			fmt.Println(line)
		}
		panic(pace)
	}
}

// checkFence checks the fence of a lease that is new, or was converted. The caller holds the mutex.
func (w *world) checkFence(s *step, token string) {
	h, l := &w.history, s.after.leases[token]
	if l.fence <= h.maxFence && !(h.lost && s.before.seq < h.maxFence && uint64(s.after.now) <= h.maxFence) {
		w.breaksLocked(fences, "%d of %s after %d", l.fence, w.tokenName(token), h.maxFence)
	}
	h.maxFence, h.lastGrant = l.fence, time.Now()
}

// checkGrant checks a new lease. The caller holds the mutex.
func (w *world) checkGrant(s *step, token string) {
	h, l := &w.history, s.after.leases[token]
	w.checkFence(s, token)
	if !s.askers[token] && (time.Since(w.ahead) < w.heartbeatTimeout() || time.Since(h.lostAt) < w.heartbeatTimeout()) {
		h.unknownLeases[token] = true // it ends with a heartbeat that the jump of the clock has shortened, or before one that was lost
	}
	w.tally["grants"]++
	if s.script == "acquire" && s.token == token && h.granting[token] {
		w.tally["a grant arrives too late and is requested again"]++
	}
	h.granting[token] = true
	at, stood := s.before.position(token)
	switch {
	case s.script == "renew" && s.token == token || !stood && !s.askers[token]:
		w.breaksLocked(grants, "%s is granted one by %s of %s", w.tokenName(token), s.script, w.tokenName(s.token))
	case time.Since(h.brokenAt[token]) < tombstoneTTL-time.Second && !h.brokenAt[token].IsZero():
		w.breaksLocked(grants, "%s was broken and is granted one by %s", w.tokenName(token), s.script)
	case h.givenUp[token]:
		w.breaksLocked(grants, "%s was given up and is granted one by %s", w.tokenName(token), s.script)
	case !s.askers[token] && !w.connected(s.before, token):
		w.breaksLocked(grants, "%s is granted one by %s and cannot be notified", w.tokenName(token), s.script)
	case !s.askers[token] && l.ends > s.before.lapse[token]+1000:
		w.breaksLocked(grants, "%s is granted one until %d, and its heartbeat lapses at %d", w.tokenName(token), l.ends, s.before.lapse[token])
	}
	if back, is := s.rejoinAt[token]; is && !stood {
		at, stood = back, true
	}
	for _, y := range s.before.queue {
		if _, still := s.after.position(y.token); !still || y.token == token || !w.connected(s.after, y.token) {
			continue
		}
		if w.kind.before(w, s, y, token, at, stood) {
			w.breaksLocked(order, "%s is granted one before %s", w.tokenName(token), w.tokenName(y.token))
		}
	}
}

// checkBelievers checks that the leases that holders consider held are compatible. The caller holds the mutex.
func (w *world) checkBelievers() {
	v := &view{leases: map[string]lease{}}
	for _, q := range w.requests {
		if q.believesHeld() && !w.history.unknownLeases[q.lease.Token()] {
			v.leases[q.lease.Token()] = lease{writes: q.writes}
		}
	}
	if !w.kind.together(w, v) {
		w.breaksLocked(exclusion, "for their holders: %v", w.holdersOf(v))
	}
}

// checkLive checks that calls make progress, and that the lock is not left free. The caller holds the mutex.
func (w *world) checkLive(v *view, holds map[int]bool) {
	h := &w.history
	now := time.Now()
	if len(v.leases) > 0 || v.leftFree() {
		h.heldAt = now
	}
	var asks *request
	var longest time.Duration
	for _, q := range w.requests {
		if !q.started || q.returned || !q.p.isSteady() || !q.cancelled.IsZero() || q.cancelOnThaw {
			continue
		}
		since := q.began
		for _, t := range []time.Time{q.p.steadyFrom, w.healthyFrom} {
			if t.After(since) {
				since = t
			}
		}
		if q.origin != nil && q.queuedAt.After(since) {
			since = q.queuedAt // it may have left the queue just now, with its lease
		}
		took := now.Sub(since)
		switch {
		case q.try || q.adopts != nil || q.origin != nil && !q.queued && !holds[q.n]:
			if took > w.settling()+4*w.lag {
				w.breaksLocked(live, "%v has not returned after %v", q, now.Sub(q.began))
			}
		case q.origin == nil && !(w.lowered && q.count > 1) && took > longest:
			asks, longest = q, took
		}
	}
	if free := now.Sub(h.heldAt); asks != nil && w.kind.vacant(v) && min(free, longest) > w.settling()+slack+4*w.lag {
		w.breaksLocked(live, "the lock has been free for %v while %v waits", free, asks)
	}
}

// checkOwed checks that no waiter could have been granted a lease for longer than that may take. The caller holds
// the mutex.
func (w *world) checkOwed(v *view) {
	h := &w.history
	now := time.Now()
	well := false
	for _, q := range w.requests {
		well = well || q.queued && !q.returned && !q.healthySince.IsZero() && q.p.isSteady()
	}
	owed := map[string]time.Time{}
	if well && len(v.queue) > 0 {
		for _, token := range w.kind.owed(w, v) {
			since, known := h.owed[token]
			if !known || h.lastGrant.After(since) {
				since = now
			}
			owed[token] = since
			if now.Sub(since) > w.period+slack+4*w.lag {
				w.breaksLocked(progress, "%s could have been granted the lock %v ago", w.tokenName(token), now.Sub(since))
			}
		}
	}
	h.owed = owed
}
