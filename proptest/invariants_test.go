package proptest

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// What is promised, whatever happens to processes, network and server. Where a fault voids a promise, it says so.
//
// A waiter is connected while the server could tell it of a grant: its process is subscribed, and its heartbeat has not
// lapsed. It is well off while its process runs, is connected and has been for long enough to have beaten, and the
// server is whole. The first promises are looked at after every script, as steps from what lay at the server before it.
const (
	// At each moment by the server's clock, the leases that are held may be held together: one; or some readers, or one
	// writer. Of those who believe to hold it, from the return of the call to that of Release or the end of the lease,
	// the same is true; but for those whose leases the server has lost with its data, or ended because its clock was set
	// forward: fences are for them.
	exclusion = "only those hold the lock together who may"
	// Whoever believes to hold a lease holds it at the server, with the same exception; and but for a lease that was to be
	// turned into another by a call that has failed, of which nobody knows what the server did.
	belief = "no holder believes longer than the server"
	// Each lease has a larger fence than those before it, also after data was lost; but not if the clock was set back as
	// well.
	fences = "fences rise"
	// Nobody is granted a lease while somebody stands in line before it who is connected, and is not granted one in the
	// same step. Who stands before whom is the primitive's to say.
	order = "waiters are served in order"
	// Nobody who is connected is taken out of line but by a grant or by leaving, and nobody is moved.
	place = "a waiter keeps its place"
	// A lease is granted to those who ask or stand in line, for no longer than they asked for; to who is not asking for
	// no longer than its heartbeat counts, and only if it can be told. Who was given up gets nothing any more, until data is lost or the clock set
	// forward: graves are for late copies of its requests.
	grants = "a lease is granted to who asks, for as long as it asks"
	// A lease ends by its own release, or by itself.
	ends = "nobody ends the lease of another"

	// One that was well off, and then away for so short a time that no heartbeat can have lapsed, has its old place when
	// it is back; but for one of whose request a copy came meanwhile.
	comeback = "who was away for a moment keeps its place"
	// With a waiter who is well off: who may be granted a lease, of those who are connected, is granted it within a
	// heartbeat, be it that a message was lost or that a lease has ended by itself. And when all faults have ended, all
	// who wait are granted it in turn, as soon as the leases of those are over who do not use them: after a heartbeat's
	// lifetime or their ttl.
	progress = "who may be granted the lock is granted it in time"
	// Nobody waits for something that nobody will do. Of a process that runs, and that together with the server has been whole
	// for as long as it may take to settle (the longest pause between two attempts, the client's time for an answer, and a
	// heartbeat): every call that does not wait for others, as a try or an adoption, has returned when it has had that time
	// once more; every other stands in line or holds. And as the server sees it: while somebody asks who has had that time,
	// the lock is not free for as long. When all faults have ended, so much for all; see progress for when they are served.
	// The closing of a keeper ends a little after what it goes on with, see Close.
	live = "nobody waits for what nobody will do"
	// Nobody asks again and again without letting time pass: messages at one instant are at most a few for each who
	// wants something.
	pace = "nobody asks without a pause"
	// A call ends when its context does.
	bounded = "a call returns when its context has ended"
	// What calls return is so: who is granted a lease has it at the server, fails only for the reason that is told, and
	// gives the lease back. A try succeeds if nobody holds or waits, and fails if it cannot be granted.
	truth = "calls tell the truth"
	// A lease that is renewed, by a process to which nothing happened on a server to which nothing happened, is not
	// lost.
	kept = "a lease lasts"
	// When all have gone nothing is left behind: at once but for the facts of the name if nothing was broken; else when
	// leases, heartbeats and graves are over. In the end the facts go, too. That no goroutine is left is seen to by the
	// bubble.
	nothing = "nothing is left behind"
)

// checkStep looks at what a script has done. The caller has the lock.
func (w *world) checkStep(s *step) {
	h := &w.history
	var fresh []string
	for token, l := range s.after.leases {
		was, had := s.before.leases[token]
		if !had {
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
		if _, held := s.after.leases[token]; !held && l.ends > s.after.now+1000 && !(s.script == "release" && s.token == token) && !w.replaced(s, token) {
			w.breaksLocked(ends, "that of %s, by %s of %s", w.tokenName(token), s.script, w.tokenName(s.token))
		}
	}
	for _, y := range s.before.queue {
		at, stands := s.after.stands(y.token)
		_, granted := s.after.leases[y.token]
		switch {
		case stands && at != y.at && s.before.lapse[y.token] > s.before.now: // else it was out of line, perhaps with the whole queue
			w.breaksLocked(place, "%s was moved from %.0f to %.0f by %s", w.tokenName(y.token), y.at, at, s.script)
		case !stands && !granted && s.token != y.token && w.connected(s.before, y.token) && !w.kind.excused(w, s, y.token):
			w.breaksLocked(place, "%s was taken out of line by %s", w.tokenName(y.token), s.script)
		}
	}
	for _, token := range fresh {
		w.checkGrant(s, token)
	}
	w.kind.stepped(w, s)
	for _, q := range w.requests {
		if q.believesHeld() && !q.converting && !h.void[q.lease.Token()] {
			if _, held := s.after.leases[q.lease.Token()]; !held {
				w.breaksLocked(belief, "%v, after %s of %s", q, s.script, w.tokenName(s.token))
			}
		}
	}
}

// checkPace looks how many scripts run at one instant. What would go on for ever, since in virtual time an answer takes
// none, ends the schedule here and now. The caller has the lock.
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

// checkGrant looks at a new lease. The caller has the lock.
func (w *world) checkGrant(s *step, token string) {
	h := &w.history
	l := s.after.leases[token]
	if l.fence <= h.top && !(h.lost && s.before.seq < h.top && uint64(s.after.now) <= h.top) {
		w.breaksLocked(fences, "%d of %s after %d", l.fence, w.tokenName(token), h.top)
	}
	h.top, h.granted = l.fence, time.Now()
	if !s.askers[token] && time.Since(w.ahead) < w.life() {
		h.void[token] = true // it ends with a heartbeat that the jump of the clock has cut short
	}
	w.tally["grants"]++
	if s.script == "acquire" && s.token == token && h.granting[token] {
		w.tally["a grant comes too late and is asked for again"]++
	}
	h.granting[token] = true
	at, stood := s.before.stands(token)
	switch {
	case s.script == "renew" && s.token == token || !stood && !s.askers[token]:
		w.breaksLocked(grants, "%s gets one by %s of %s", w.tokenName(token), s.script, w.tokenName(s.token))
	case h.gone[token]:
		w.breaksLocked(grants, "%s was given up and gets one by %s", w.tokenName(token), s.script)
	case !s.askers[token] && !w.terms(token).cannot && !w.connected(s.before, token):
		w.breaksLocked(grants, "%s gets one by %s and cannot be told", w.tokenName(token), s.script)
	case !s.askers[token] && l.ends > max(s.before.lapse[token], w.originEnds(s, token))+1000:
		w.breaksLocked(grants, "%s is granted one until %d, and its heartbeat lapses at %d", w.tokenName(token), l.ends, s.before.lapse[token])
	}
	if back, is := s.back[token]; is && !stood {
		at, stood = back, true
	}
	for _, y := range s.before.queue {
		if _, still := s.after.stands(y.token); !still || y.token == token || !w.connected(s.after, y.token) {
			continue
		}
		if h.lost && w.setBack > 0 && y.at > float64(s.after.now) {
			continue // places are times, and this one is of a time that is not known any more
		}
		if w.kind.before(w, s, y, token, at, stood) {
			w.breaksLocked(order, "%s is granted one before %s", w.tokenName(token), w.tokenName(y.token))
		}
	}
}

// originEnds is when the lease would have ended in whose place that of the token has come; 0 if it has come in none's.
func (w *world) originEnds(s *step, token string) int64 {
	if q := w.requestLocked(token); q != nil && q.origin != nil {
		return s.before.leases[q.origin.lease.Token()].ends
	}
	return 0
}

// replaced says whether a lease has ended because one has come in its place.
func (w *world) replaced(s *step, token string) bool {
	for other := range s.after.leases {
		if _, had := s.before.leases[other]; had {
			continue
		}
		if q := w.requestLocked(other); q != nil && q.origin != nil && q.origin.lease.Token() == token {
			return true
		}
	}
	return false
}

// checkBelievers looks whether those may hold the lock together who believe to. The caller has the lock.
func (w *world) checkBelievers() {
	v := &view{leases: map[string]lease{}}
	for _, q := range w.requests {
		if q.believesHeld() && !q.converting && !w.history.void[q.lease.Token()] {
			v.leases[q.lease.Token()] = lease{}
		}
	}
	if !w.kind.together(w, v) {
		w.breaksLocked(exclusion, "as they believe: %v", w.holdersOf(v))
	}
}

// checkLive looks whether calls go on, and whether the lock is free and nobody takes it. The caller has the lock.
func (w *world) checkLive(v *view, holds map[int]bool) {
	h := &w.history
	now := time.Now()
	if len(v.leases) > 0 {
		h.held = now
	}
	var asks *request
	var longest time.Duration
	for _, q := range w.requests {
		if !q.started || q.returned || !q.p.isSteady() || !q.cancelled.IsZero() || q.quits {
			continue
		}
		since := q.began
		for _, t := range []time.Time{q.p.steady, w.sound} {
			if t.After(since) {
				since = t
			}
		}
		took := now.Sub(since)
		switch {
		case q.try || q.adopts != nil || q.origin != nil && !q.stands && !holds[q.n]:
			if took > w.settling()+4*w.lag {
				w.breaksLocked(live, "%v has not returned after %v", q, now.Sub(q.began))
			}
		case q.origin == nil && !(w.lowered && q.count > 1) && took > longest:
			asks, longest = q, took
		}
	}
	if free := now.Sub(h.held); asks != nil && w.kind.vacant(v) && min(free, longest) > w.settling()+slack+4*w.lag {
		w.breaksLocked(live, "the lock is free for %v, and %v asks", free, asks)
	}
}

// checkOwed looks whether somebody could have been granted a lease for longer than that may take. The caller has the
// lock.
func (w *world) checkOwed(v *view) {
	h := &w.history
	now := time.Now()
	well := false
	for _, q := range w.requests {
		well = well || q.stands && !q.returned && !q.well.IsZero() && q.p.isSteady()
	}
	owed := map[string]time.Time{}
	if well && len(v.queue) > 0 {
		for _, token := range w.kind.owed(w, v) {
			since, known := h.owed[token]
			if !known || h.granted.After(since) {
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
