package proptest

import (
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"pgregory.net/rapid"
)

func (w *world) crashProcess(r *rapid.T) {
	draw(r, w.in(running, lossy, unsubscribed, unseen, disconnected, frozen), "process").crash()
}

func (w *world) crashHolder(r *rapid.T) { draw(r, w.holders(), "holder").p.crash() }

// handOverToken crashes a process that has handed over the token of a lease. Another process adopts it, perhaps too
// late.
func (w *world) handOverToken(r *rapid.T) {
	from := draw(r, w.steadyHolders(), "holder")
	var others []*process
	for _, p := range w.in(running) {
		if p != from.p {
			others = append(others, p)
		}
	}
	to := draw(r, others, "process")
	if len(w.requests) >= w.most() {
		r.Skip("too many")
	}
	q := w.requestOf(to)
	q.use, q.count, q.adopts, q.broken = from.use, from.count, from, from.broken
	w.enter(q, w.while(r, 10*time.Second), false)
	w.mu.Lock()
	w.noteLocked("it adopts the token of %v", from)
	of := from.first()
	of.longest = max(of.longest, q.ttl())
	w.mu.Unlock()
	from.p.crashAfterHandover(from)
	d := w.while(r, 10*time.Second)
	later := time.After(d)
	if rapid.IntRange(0, 3).Draw(r, "and is broken") == 0 {
		w.after(d+w.while(r, 10*time.Second), func() {
			w.mu.Lock()
			breaks := q.lease != nil && q.believesHeld() && !q.broken && to.state == running
			w.mu.Unlock()
			if breaks {
				w.breakToken(to, q.lease.Token())
			}
		})
	}
	w.actors.Go(func() {
		select {
		case <-later:
		case <-q.ctx.Done():
		}
		q.run()
	})
}

// degradeProcess puts a process into another state for a while.
func (w *world) degradeProcess(s state, longest time.Duration) func(*rapid.T) {
	return func(r *rapid.T) { draw(r, w.in(running), "process").degrade(s, w.while(r, longest)) }
}

// freezeHead freezes the first waiter and lets the holder release, so that the waiter is granted a lock that it
// cannot use.
func (w *world) freezeHead(r *rapid.T) {
	head := w.head(r)
	holder := draw(r, w.holders(), "holder")
	if holder.p != head.p && rapid.Bool().Draw(r, "until its heartbeat has lapsed") {
		head.p.degrade(frozen, w.heartbeatTimeout()+w.while(r, 20*time.Second))
		w.advance(w.heartbeatTimeout())
		w.requestRelease(holder)
		return
	}
	head.p.degrade(frozen, w.while(r, 20*time.Second))
	if holder.p != head.p {
		w.requestRelease(holder)
	}
}

// leaveUnconfirmed lets the holder release while requests of the first waiter are lost, but messages are not: it is
// granted a lease that it cannot confirm.
func (w *world) leaveUnconfirmed(r *rapid.T) {
	head, holder := w.head(r), draw(r, w.holders(), "holder")
	if head.p == holder.p {
		r.Skip("the release would be lost as well")
	}
	head.p.link.Break("evalsha", 1<<30, rapid.SampledFrom([]faultnet.Fault{faultnet.LoseRequest, faultnet.SwallowReply}).Draw(r, "fault"))
	head.p.degrade(lossy, w.heartbeatTimeout()+w.while(r, 20*time.Second))
	w.reach("a grant cannot be confirmed")
	w.requestRelease(holder)
}

// replyFaults are the faults of requests and replies.
var replyFaults = []faultnet.Fault{faultnet.LoseRequest, faultnet.CutReply, faultnet.TruncateReply, faultnet.SwallowReply}

// loseReplies loses up to three requests or replies.
func (w *world) loseReplies(r *rapid.T) {
	p := draw(r, w.in(running), "process")
	fault := rapid.SampledFrom(replyFaults).Draw(r, "fault")
	p.link.Break("evalsha", rapid.IntRange(1, 3).Draw(r, "how many"), fault)
	p.degrade(lossy, w.while(r, 3*time.Second))
}

// loseOneReply loses a request or a reply. A lease is renewed often enough that it outlasts that.
func (w *world) loseOneReply(r *rapid.T) {
	p := draw(r, w.in(running), "process")
	if list := w.holders(); len(list) > 0 && rapid.Bool().Draw(r, "of a holder") {
		if q := draw(r, list, "holder"); q.p.state == running {
			p = q.p
		}
	}
	p.link.Break("evalsha", 1, rapid.SampledFrom(replyFaults).Draw(r, "fault"))
	harmed := p.harmed
	p.degrade(lossy, w.brief())
	p.harmed = harmed
	w.reach("a single reply is lost")
}

// slowReplies delays the requests or replies of a process: from nothing to several ttls, each message differently.
// So a grant can have expired when its process learns of it.
func (w *world) slowReplies(r *rapid.T) {
	p := draw(r, w.in(running), "process")
	d := w.late(r)
	var out, in time.Duration
	switch rapid.SampledFrom([]string{"requests", "replies", "both"}).Draw(r, "which") {
	case "requests":
		out = d
	case "replies":
		in = d
	default:
		out, in = d/2, d/2
	}
	w.note("requests of process %d take up to %v longer, replies %v", p.id, out, in)
	p.link.Slow(out, in)
	p.degrade(slow, d+w.while(r, 10*time.Second))
}

// delayGrant delays the reply to a request for the free lock: the process is frozen when the reply comes, or the
// server when the request does, or the reply is slow.
func (w *world) delayGrant(r *rapid.T) {
	p := draw(r, w.in(running), "process")
	for _, q := range w.waiters() {
		q.cancelWait()
	}
	for _, q := range w.holders() {
		w.requestRelease(q)
	}
	w.advance(grace + 4*w.lag)
	if !w.kind.vacant(w.view()) || len(w.requests) >= w.most() {
		r.Skip("the lock is held")
	}
	w.reach("a reply to a request is late")
	q := w.requestOf(p)
	q.try = rapid.IntRange(0, 3).Draw(r, "try") == 0
	w.kind.wants(r, q)
	w.enter(q, w.while(r, time.Second), false)
	d := min(q.ttl(), 2*w.brief()) + w.late(r)
	switch rapid.SampledFrom([]string{"process", "server", "answer"}).Draw(r, "what is late") {
	case "process": // the request is sent and the reply has not come
		p.link.Slow(0, w.brief()/3)
		w.launch(q)
		synctest.Wait()
		p.degrade(frozen, d)
		p.link.Slow(0, 0)
	case "server":
		w.freezeServerFor(d)
		w.launch(q)
	default:
		p.link.Slow(d/10, d)
		p.degrade(slow, d+w.while(r, 10*time.Second))
		w.launch(q)
	}
}

// freezeServer freezes the server. It accepts requests and runs them when it is thawed. No connections are made
// meanwhile: a real server would accept them, but the client of a subscription holds a mutex until it has a reply,
// and while goroutines wait for a mutex the clock of a bubble does not advance.
func (w *world) freezeServer(r *rapid.T) {
	w.freezeServerFor(w.late(r))
}

func (w *world) freezeServerFor(d time.Duration) {
	w.mu.Lock()
	w.noteLocked("the server freezes for %v", d)
	w.tally["the server freezes"]++
	w.serverDegradedLocked(d)
	w.mu.Unlock()
	synctest.Wait() // no connection is being opened
	w.server.freeze()
	w.after(d, func() {
		w.note("the server is thawed")
		w.server.thaw()
	})
}

// delayDuplicate loses requests or replies of a process, and sends the requests again long after they were given up,
// but before their tombstones expire, which is what the protocol relies on.
func (w *world) delayDuplicate(r *rapid.T) {
	p := draw(r, w.in(running), "process")
	fault := rapid.SampledFrom(replyFaults).Draw(r, "fault")
	p.link.Break("evalsha", rapid.IntRange(1, 3).Draw(r, "how many"), fault|faultnet.Copy)
	during := w.while(r, 3*time.Second)
	p.degrade(lossy, during)
	w.after(during+w.while(r, 20*time.Second), func() { w.replay(p) }) // when no more are copied
}

// replay sends the copies of requests of a process.
func (w *world) replay(p *process) {
	w.mu.Lock()
	w.noteLocked("duplicates of requests of process %d arrive", p.id)
	w.tally["duplicates arrive late"]++
	p.lastDuplicate = time.Now()
	w.mu.Unlock()
	w.actors.Go(func() { _ = p.link.Replay() })
}

// loseMessage lets the holder release while the first waiter gets no messages: its subscription is stale, or its
// subscription or all of its connections are cut and not reopened for a while.
func (w *world) loseMessage(r *rapid.T) {
	head := w.head(r)
	holder := draw(r, w.holders(), "holder")
	if how := rapid.SampledFrom([]state{"stale", unsubscribed, unseen, disconnected}).Draw(r, "how"); how == "stale" {
		head.p.makeSubscriptionStale()
	} else {
		head.p.degrade(how, w.while(r, 3*time.Second))
	}
	synctest.Wait()
	w.requestRelease(holder)
}

// cancelUndeliveredGrant cancels a wait whose grant the waiter does not know.
func (w *world) cancelUndeliveredGrant(r *rapid.T) {
	head, holder := w.head(r), draw(r, w.holders(), "holder")
	head.p.makeSubscriptionStale()
	w.requestRelease(holder)
	synctest.Wait()
	v := w.view()
	w.mu.Lock()
	_, unheard := v.leases[head.token]
	unheard = unheard && !head.returned
	w.mu.Unlock()
	head.cancelWait()
	if unheard {
		w.reach("an undelivered grant is released")
	}
}

func (w *world) flushScripts(*rapid.T) {
	w.note("the server forgets its scripts")
	w.reach("the server forgets its scripts")
	w.server.forgetScripts()
}

// serverDegradedLocked records that the server is degraded for d.
func (w *world) serverDegradedLocked(d time.Duration) {
	w.degradedAt = time.Now()
	if sound := w.degradedAt.Add(d + w.settling() + 4*w.lag); sound.After(w.healthyFrom) {
		w.healthyFrom = sound
	}
	for _, q := range w.requests {
		q.healthySince = time.Time{}
	}
}

// refuseCommands makes the server refuse writes, or all commands, for a while.
func (w *world) refuseCommands(r *rapid.T) {
	why := rapid.SampledFrom([]refusal{full, replica, loading}).Draw(r, "why")
	d := w.while(r, 12*time.Second)
	w.mu.Lock()
	w.noteLocked("the server says %s for %v", why, d)
	w.tally["the server says "+string(why)]++
	w.serverDegradedLocked(d)
	w.mu.Unlock()
	w.server.refuseWith(why)
	w.after(d, func() {
		w.note("the server accepts commands again")
		w.server.refuseWith(willing)
	})
}

// restartEmpty stops the server for a while. It restarts without any data.
func (w *world) restartEmpty(r *rapid.T) {
	w.note("the server restarts empty")
	w.reach("the server restarts empty")
	w.restartWith(nil, leastOutage+w.while(r, 5*time.Second))
}

// leastOutage is the least time for which a server is away that loses writes. The fast scripts draw fences from the clock in whole
// ms, so the next one is larger only in a later ms if the last was lost. No server comes back sooner.
const leastOutage = time.Millisecond

// failOver stops the server for a while. It restarts with an earlier snapshot, like a replica without the last
// writes.
func (w *world) failOver(r *rapid.T) {
	data := draw(r, w.saved[max(0, len(w.saved)-3):], "data")
	w.note("the server fails over and loses its last writes")
	w.reach("the server fails over")
	w.restartWith(data, leastOutage+w.while(r, 5*time.Second))
}

func (w *world) restartWith(data []record, d time.Duration) {
	w.mu.Lock()
	w.serverDegradedLocked(d)
	w.mu.Unlock()
	w.stopServer()
	time.Sleep(d)
	w.server.start(data)
	w.dataLost(true)
	w.note("the server runs again")
}

// stopServer stops the server, and ends all connections.
func (w *world) stopServer() {
	w.server.stop()
	for _, p := range w.processes {
		p.link.Cut()
	}
	synctest.Wait()
}

// jumpClock sets the server's clock, forward or back. A failover restores nothing from before that.
func (w *world) jumpClock(r *rapid.T) {
	by := duration(r, min(30*time.Minute, w.idle/2))
	if rapid.Bool().Draw(r, "back") {
		by = -by
	}
	w.mu.Lock()
	w.noteLocked("the server's clock jumps by %v", by)
	if by < 0 {
		w.setBack -= by
		w.tally["the clock is set back"]++
	} else {
		w.ahead = time.Now()
		w.tally["the clock is set forward"]++
	}
	w.serverDegradedLocked(0)
	w.mu.Unlock()
	was := w.view().now
	w.server.jump(by)
	if by > 0 {
		w.dataLost(false)
	} else {
		v := w.view()
		w.mu.Lock()
		w.history.last = v
		w.kind.serverDegraded(false, was, v.now)
		w.mu.Unlock()
	}
}

// recoverServer ends all faults of the server but its clock.
func (w *world) recoverServer() {
	w.server.thaw()
	w.server.refuseWith(willing)
	w.server.forgetScripts()
}
