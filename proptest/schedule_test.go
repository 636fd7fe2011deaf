package proptest

import (
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"pgregory.net/rapid"
)

// schedule draws what happens in a world, from its beginning to its end.
func (w *world) schedule(r *rapid.T) {
	defer w.stop()
	w.choose(r)
	w.focusOn(r)
	if w.bound != "" {
		w.reach("at its bound: " + w.bound)
		w.note("at its bound: %s", w.bound)
	}
	w.longest = w.ttl
	if rapid.Bool().Draw(r, "lag") || *delayedEffects {
		w.lag = w.scaled(rapid.SampledFrom([]time.Duration{2 * time.Millisecond, 100 * time.Millisecond}).Draw(r, "the longest"))
	}
	w.kind.settings(r)
	if w.replicas = w.now(r, acks, 8); w.replicas {
		w.usesInAll(acks)
	}
	w.begin() // with the scripts and keys that the settings call for
	for range rapid.IntRange(2, 4).Draw(r, "processes") {
		w.join()
	}
	r.Repeat(w.actions(r))
	w.finish(r)
}

// actions returns what may happen in a schedule. Each schedule has its own selection of faults.
func (w *world) actions(r *rapid.T) map[string]func(*rapid.T) {
	actions := map[string]func(*rapid.T){
		"":                                   func(*rapid.T) { w.checkState() },
		"time passes":                        w.timePasses,
		"more time passes":                   w.timePasses,
		"still more time passes":             w.timePasses,
		"a waiter arrives":                   w.addWaiter,
		"another waiter arrives":             w.addWaiter,
		"several waiters arrive":             w.addWaiters,
		"many waiters arrive":                w.addManyWaiters,
		"a try":                              w.tryLock,
		"a try at the expiry of a lease":     w.tryLockAtExpiry,
		"a holder releases":                  w.releaseHolder,
		"a waiter is cancelled":              w.cancelWaiter,
		"a waiter is cancelled at its grant": w.cancelAtGrant,
		"a lease is extended":                w.extendLease,
		"another lease is extended":          w.extendLease,
	}
	if w.now(r, breaking, 4) {
		actions["somebody is broken"] = w.breakSomebody
	}
	if w.inFocus(breaking) {
		actions["somebody else is broken"] = w.breakSomebody
	}
	for what, do := range w.kind.actions(w) {
		actions[what] = do
	}
	w.noFaults = true
	if rapid.IntRange(0, 7).Draw(r, "faults") == 0 && !w.inFocus(adopts) { // who hands a token over crashes
		return actions
	}
	for _, fault := range []struct {
		name   string
		action func(*rapid.T)
		rare   bool // these hide other failures
	}{
		{"a process crashes", w.crashProcess, false},
		{"the holder crashes", w.crashHolder, false},
		{"a token is handed over", w.handOverToken, false},
		{"a process freezes", w.degradeProcess(frozen, 20*time.Second), false},
		{"answers are slow", w.slowReplies, false},
		{"a grant is delayed", w.delayGrant, false},
		{"the head freezes", w.freezeHead, false},
		{"a process is disconnected", w.degradeProcess(disconnected, 15*time.Second), false},
		{"a process is unsubscribed", w.degradeProcess(unsubscribed, 3*time.Second), false},
		{"a process is unseen", w.degradeProcess(unseen, 20*time.Second), false},
		{"answers are lost", w.loseReplies, false},
		{"an answer is lost", w.loseOneReply, false},
		{"a duplicate is delayed", w.delayDuplicate, false},
		{"a message is lost", w.loseMessage, false},
		{"the reply to a grant is lost and the wait is cancelled", w.cancelUndeliveredGrant, false},
		{"a grant is never confirmed", w.leaveUnconfirmed, false},
		{"the server forgets its scripts", w.flushScripts, false},
		{"the server freezes", w.freezeServer, true},
		{"the server refuses", w.refuseCommands, true},
		{"the server restarts empty", w.restartEmpty, true},
		{"the server fails over", w.failOver, true},
		{"the server's clock jumps", w.jumpClock, true},
	} {
		if strings.HasSuffix(w.bound, "pauses") && fault.name == "an answer is lost" { // which is repeated after a pause
			actions["another answer is lost"] = fault.action
		}
		if fault.rare && rapid.IntRange(0, 3).Draw(r, fault.name) == 0 || !fault.rare && rapid.Bool().Draw(r, fault.name) {
			actions[fault.name] = fault.action
			w.noFaults = false
		}
	}
	if w.inFocus(adopts) {
		actions["a token is handed over to be used"] = w.handOverToken
		actions["another token is handed over to be used"] = w.handOverToken
		w.noFaults = false
	}
	return actions
}

func (w *world) timePasses(r *rapid.T) {
	w.saved = append(w.saved, w.server.data())
	w.advance(w.while(r, 20*time.Second))
}

func (w *world) addWaiter(r *rapid.T) {
	w.launch(w.newRequest(r, draw(r, w.activeProcesses(), "process"), false))
}

func (w *world) launch(q *request) { w.actors.Go(q.run) }

func (w *world) addWaiters(r *rapid.T) {
	var list []*request
	n := rapid.IntRange(2, 4).Draw(r, "how many")
	if len(w.requests)+n > w.most() {
		r.Skip("too many")
	}
	for range n {
		list = append(list, w.newRequest(r, draw(r, w.activeProcesses(), "process"), false))
	}
	w.reach("several waiters arrive at once")
	for _, q := range list {
		w.launch(q)
	}
}

// addManyWaiters adds many waiters that hold the lock for a moment each.
func (w *world) addManyWaiters(r *rapid.T) {
	processes := w.activeProcesses()
	room := min(60, w.most()-len(w.requests))
	if room < 5 || len(processes) == 0 {
		r.Skip("too many")
	}
	n := rapid.IntRange(5, room).Draw(r, "how many")
	hold := rapid.SampledFrom([]int{0, 1, 20}).Draw(r, "hold ms")
	w.note("requests %d to %d, of processes in turn, hold %d ms", len(w.requests), len(w.requests)+n-1, hold)
	w.reach("many waiters arrive")
	for i := range n {
		q := w.requestOf(processes[i%len(processes)])
		w.kind.wants(r, q)
		w.enter(q, time.Duration(hold)*time.Millisecond, true)
		w.launch(q)
	}
}

func (w *world) tryLock(r *rapid.T) { w.tryLockIn(r, draw(r, w.activeProcesses(), "process")) }

// tryLockAtExpiry tries at the moment at which a lease expires, before waiters have asked again.
func (w *world) tryLockAtExpiry(r *rapid.T) {
	v := w.view()
	if len(w.waiters()) == 0 || len(v.leases) == 0 || w.ages() {
		r.Skip("there is nobody to pass")
	}
	p := draw(r, w.in(running), "process")
	var first int64
	for _, l := range v.leases {
		if first == 0 || l.ends < first {
			first = l.ends
		}
	}
	w.advance(time.Duration(first-v.now) * time.Microsecond)
	if v := w.view(); len(v.leases) == 0 && len(v.queue) > 0 {
		w.reach("a try at the expiry of a lease")
	}
	w.tryLockIn(r, p)
}

func (w *world) tryLockIn(r *rapid.T, p *process) {
	q := w.newRequest(r, p, true)
	synctest.Wait()
	v := w.view()
	w.launch(q)
	if w.lag > 0 {
		return
	}
	synctest.Wait()
	after := w.view() // another may have arrived first at the same instant
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.history.ends { // the fraction of a millisecond in which a lease expires does not matter
		if d := at - v.now; -1000 < d && d < 1000 {
			return
		}
	}
	switch {
	case !q.returned: // unused connections that broke meanwhile cost it an attempt
		if p.neverDegraded() {
			w.breaksLocked(truth, "try %d has not returned", q.n)
		}
	case w.replicas && !p.neverDegraded(): // so they may cost it the acknowledgement
	case w.lowered && q.count > 1: // perhaps there are never so many permits any more
	case w.kind.free(v) && w.kind.free(after) && q.lease == nil && p.isSteady():
		w.breaksLocked(truth, "try %d was refused a lock that is free", q.n)
	}
}

// holders returns the requests that consider their lease held and whose process runs.
func (w *world) holders() []*request {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*request
	for _, q := range w.requests {
		if q.believesHeld() && !q.releaseRequested && q.p.state != frozen && q.p.state != crashed {
			list = append(list, q)
		}
	}
	return list
}

// waiters returns the requests that wait and whose process runs.
func (w *world) waiters() []*request {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*request
	for _, q := range w.requests {
		if !q.returned && q.cancelled.IsZero() && !q.cancelOnThaw && q.p.state != frozen && q.p.state != crashed {
			list = append(list, q)
		}
	}
	return list
}

// head returns the first waiter, if its process is healthy.
func (w *world) head(r *rapid.T) *request {
	for _, y := range w.view().queue {
		w.mu.Lock()
		q := w.requestLocked(y.token)
		ok := q != nil && !q.healthySince.IsZero() && q.p.state == running && !q.returned && q.cancelled.IsZero()
		w.mu.Unlock()
		if ok {
			return q
		}
	}
	r.Skip("nobody waits")
	return nil
}

func (w *world) releaseHolder(r *rapid.T) { w.requestRelease(draw(r, w.holders(), "holder")) }

// extendLease extends the lease of a holder, perhaps to less than it has.
func (w *world) extendLease(r *rapid.T) {
	q := draw(r, w.steadyHolders(), "holder")
	d := q.drawExtension(r)
	w.mu.Lock()
	running := q.p.state == running
	w.mu.Unlock()
	if running && !w.noFaults && rapid.IntRange(0, 3).Draw(r, "its answer is lost") == 0 {
		q.p.link.Break("evalsha", 3, faultnet.SwallowReply) // so that it is given up
		q.p.degrade(lossy, w.scaled(2*time.Second))
	}
	w.actors.Go(func() { q.extend(d) })
}

// drawExtension draws to which time the lease will be extended.
func (q *request) drawExtension(r *rapid.T) time.Duration {
	w := q.w
	d := rapid.SampledFrom([]time.Duration{time.Second, time.Second, 5 * time.Second, 20 * time.Second}).Draw(r, "to")
	d = max(w.scaled(d), 10*time.Millisecond)
	if d < 15*w.lag {
		r.Skip("a renewal needs the time to connect")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked("%v extends its lease to %v", q, d)
	of := q.first()
	of.longest = max(of.longest, d)
	w.longest = max(w.longest, d)
	return d
}

// steadyHolders returns the holders that are not about to convert their lease.
func (w *world) steadyHolders() []*request {
	list := w.holders()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(list, func(q *request) bool { return q.converting || len(q.convertTo) > 0 })
}

func (w *world) cancelWaiter(r *rapid.T) { draw(r, w.waiters(), "waiter").cancelWait() }

// cancelAtGrant cancels a wait at the moment of the grant, and perhaps that of the next waiter in the same process,
// which asks then.
func (w *world) cancelAtGrant(r *rapid.T) {
	head, holder := w.head(r), draw(r, w.holders(), "holder")
	w.reach("a cancellation meets the grant")
	if rapid.Bool().Draw(r, "and the next") {
		for _, q := range w.waiters() {
			if q.p == head.p && q != head && !q.queued {
				q.cancelWait()
				break
			}
		}
	}
	if rapid.Bool().Draw(r, "release first") {
		w.requestRelease(holder)
		head.cancelWait()
	} else {
		head.cancelWait()
		w.requestRelease(holder)
	}
}

// finish ends the schedule in one of three ways, and checks what remains.
func (w *world) finish(r *rapid.T) {
	w.checkState()
	for _, p := range w.in(lossy, slow, unsubscribed, unseen, disconnected, frozen) {
		p.recover(p.state)
	}
	w.recoverServer()
	if !w.noFaults { // so that degraded processes recover, and then calls proceed
		w.advance(2*w.settling() + w.tail() + slack + 8*w.lag)
	}
	ends := []string{"cancelled", "closed", "served"}
	if w.ages() {
		ends = ends[:2]
	}
	switch rapid.SampledFrom(ends).Draw(r, "at the end waiters are") {
	case "served":
		w.drainQueue()
	case "cancelled":
		for _, q := range w.waiters() {
			q.cancelWait()
		}
		for _, q := range w.holders() {
			w.requestRelease(q)
		}
		w.advance(grace + 4*w.lag)
		w.checkLeft(w.leavesNothing(), w.server.keys())
	}
	w.stop()
	w.checkLeft(w.leavesNothing(), w.server.keys())
	if w.noFaults {
		v := w.view()
		w.checkLeft(w.lag <= 2*time.Millisecond && len(v.leases)+len(v.queue) > 0, w.server.keys())
		w.reach("nothing is left without faults")
	}
	w.elapsed = time.Since(w.start)
	for _, p := range w.processes {
		_ = p.rdb.Close() // those that crashed would dial for as long as time passes
	}
	time.Sleep(w.setBack + max(w.longest+time.Second, w.heartbeatTimeout()) + w.kind.lingers() + time.Second + slack)
	v := w.view()
	w.checkLeft(len(v.leases) > 0 || len(v.queue) > 0, w.server.keys())
	time.Sleep(tombstoneTTL)
	w.checkLeft(true, w.server.keys())
	time.Sleep(w.idle + w.longest + w.kind.lingers()) // the metadata of a window is kept for two
	w.server.now()
	w.checkLeft(true, w.server.mini.Keys())
}

// leavesNothing reports whether nothing may remain after the last call has returned: no tombstone of what was broken, for example.
func (w *world) leavesNothing() bool {
	return w.noFaults && w.lag == 0 && w.kind.lingers() == 0 && len(w.history.brokenAt) == 0
}

// drainQueue checks that all waiters are granted a lease now that there are no more faults. Waiters that do not count on their
// subscription may learn of it by their heartbeats, one after the other.
func (w *world) drainQueue() {
	begin := time.Now()
	turns := 10
	v := w.view()
	for _, y := range v.queue {
		if v.uncounted[y.token] {
			turns++
		}
	}
	within := w.setBack + max(w.longest+time.Second, w.heartbeatTimeout()) + time.Duration(turns)*(w.period+slack) + time.Duration(len(w.requests))*(4*w.lag+w.kind.lingers())
	for time.Since(begin) < within {
		for _, q := range w.holders() {
			w.requestRelease(q)
		}
		if len(w.waiters()) == 0 {
			w.reach("all waiters are served at the end")
			return
		}
		w.advance(10*time.Millisecond + 4*w.lag + w.kind.lingers()/10 + within/5000)
	}
	for _, q := range w.waiters() {
		w.breaks(progress, "%v was not served in %v", q, within)
	}
	w.fail()
}

func (w *world) checkLeft(counts bool, left []string) {
	if counts && len(left) > 0 {
		w.breaks(nothing, "%v", left)
	}
	w.fail()
}
