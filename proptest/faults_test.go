package proptest

import (
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"pgregory.net/rapid"
)

func (w *world) crashProcess(r *rapid.T) {
	draw(r, w.in(running, lossy, muted, away, frozen), "process").crash()
}

func (w *world) crashHolder(r *rapid.T) { draw(r, w.holders(), "holder").p.crash() }

// handOverToken crashes a process that has written down the token of a lease. Another makes a lease of it, perhaps too late.
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
	q := &request{
		w: w, p: to, use: from.use, count: from.count, adopts: from, began: time.Now(), within: time.Second,
		let: make(chan struct{}), turn: make(chan *request, 1),
	}
	w.enter(q, w.while(r, 10*time.Second), false)
	w.mu.Lock()
	w.noteLocked("its token is that of %v", from)
	of := from.first()
	of.longest = max(of.longest, q.ttl())
	w.mu.Unlock()
	from.p.crashAfterHandover(from)
	later := time.After(w.while(r, 10*time.Second))
	w.actors.Go(func() {
		select {
		case <-later:
		case <-q.ctx.Done():
		}
		q.run()
	})
}

// degradeProcess brings a process into another state for a while.
func (w *world) degradeProcess(s state, longest time.Duration) func(*rapid.T) {
	return func(r *rapid.T) { draw(r, w.in(running), "process").degrade(s, w.while(r, longest)) }
}

// freezeHead freezes the first waiter and lets the holder release, so that it is granted a lock that it cannot use.
func (w *world) freezeHead(r *rapid.T) {
	head := w.head(r)
	holder := draw(r, w.holders(), "holder")
	if holder.p != head.p && rapid.Bool().Draw(r, "until its heartbeat has lapsed") {
		head.p.degrade(frozen, w.life()+w.while(r, 20*time.Second))
		w.advance(w.life())
		w.requestRelease(holder)
		return
	}
	head.p.degrade(frozen, w.while(r, 20*time.Second))
	if holder.p != head.p {
		w.requestRelease(holder)
	}
}

// leaveUnconfirmed lets the holder release while no request of the first waiter arrives, though it hears: it is granted a
// lease that it cannot make whole.
func (w *world) leaveUnconfirmed(r *rapid.T) {
	head, holder := w.head(r), draw(r, w.holders(), "holder")
	if head.p == holder.p {
		r.Skip("the release would not arrive either")
	}
	head.p.link.Break("evalsha", 1<<30, rapid.SampledFrom([]faultnet.Fault{faultnet.LoseRequest, faultnet.SwallowReply}).Draw(r, "fate"))
	head.p.degrade(lossy, w.life()+w.while(r, 20*time.Second))
	w.reach("a grant cannot be confirmed")
	w.requestRelease(holder)
}

// fates is what becomes of requests.
var fates = []faultnet.Fault{faultnet.LoseRequest, faultnet.CutReply, faultnet.TruncateReply, faultnet.SwallowReply}

// loseReplies loses up to three requests or answers.
func (w *world) loseReplies(r *rapid.T) {
	p := draw(r, w.in(running), "process")
	fate := rapid.SampledFrom(fates).Draw(r, "fate")
	p.link.Break("evalsha", rapid.IntRange(1, 3).Draw(r, "how many"), fate)
	p.degrade(lossy, w.while(r, 3*time.Second))
}

// slowReplies lets what a process sends, or what it is told, take long: from nothing to several ttls, each message another
// time. So a grant can be over when it is heard of.
func (w *world) slowReplies(r *rapid.T) {
	p := draw(r, w.in(running), "process")
	d := w.late(r)
	var out, in time.Duration
	switch rapid.SampledFrom([]string{"requests", "answers", "both"}).Draw(r, "which") {
	case "requests":
		out = d
	case "answers":
		in = d
	default:
		out, in = d/2, d/2
	}
	w.note("what process %d sends takes up to %v more, what it is told %v", p.id, out, in)
	p.link.Slow(out, in)
	p.degrade(slow, d+w.while(r, 10*time.Second))
}

// delayGrant lets somebody ask for a lock that is free, and the answer takes long: the process is frozen when it comes, or
// the server is when the request does, or it is long under way.
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
		r.Skip("it is not free")
	}
	w.reach("somebody asks and the answer is late")
	q := &request{
		w: w, p: p, try: rapid.IntRange(0, 3).Draw(r, "try") == 0, began: time.Now(), within: time.Second,
		let: make(chan struct{}), turn: make(chan *request, 1),
	}
	w.kind.wants(r, q)
	w.enter(q, w.while(r, time.Second), false)
	d := q.ttl() + w.late(r)
	switch rapid.SampledFrom([]string{"process", "server", "answer"}).Draw(r, "what is late") {
	case "process": // it has asked, and the answer is not there yet
		p.link.Slow(0, w.ttl/3)
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

// freezeServer lets the server stand still. It takes what is sent to it, runs it when it goes on, and answers then.
// Connections are not made meanwhile: those of a real server would be, but who makes a subscription holds a lock until it is
// answered, and while goroutines wait for a lock the clock of a bubble stands still.
func (w *world) freezeServer(r *rapid.T) {
	w.freezeServerFor(w.late(r))
}

func (w *world) freezeServerFor(d time.Duration) {
	w.mu.Lock()
	w.noteLocked("the server freezes for %v", d)
	w.tally["the server freezes"]++
	w.serverDegradedLocked(d)
	w.mu.Unlock()
	synctest.Wait() // no connection is being made
	w.server.freeze()
	w.after(d, func() {
		w.note("the server goes on")
		w.server.thaw()
	})
}

// delayDuplicate loses requests or answers of a process. What it has sent comes to the server once more, long after it
// has given up on it: less than a grave lasts, which is what the protocol counts on.
func (w *world) delayDuplicate(r *rapid.T) {
	p := draw(r, w.in(running), "process")
	fate := rapid.SampledFrom(fates).Draw(r, "fate")
	p.link.Break("evalsha", rapid.IntRange(1, 3).Draw(r, "how many"), fate|faultnet.Copy)
	during := w.while(r, 3*time.Second)
	p.degrade(lossy, during)
	w.after(during+w.while(r, 20*time.Second), func() { // when none is kept any more
		w.mu.Lock()
		w.noteLocked("copies of what process %d has sent come", p.id)
		w.tally["copies come late"]++
		p.copied = time.Now()
		w.mu.Unlock()
		w.actors.Go(func() { _ = p.link.Replay() })
	})
}

// loseMessage lets the holder release while the first waiter does not hear: it is deaf and nobody knows, or its
// subscription or all of its connections are cut and not made again for a while.
func (w *world) loseMessage(r *rapid.T) {
	head := w.head(r)
	holder := draw(r, w.holders(), "holder")
	if how := rapid.SampledFrom([]state{"deaf", muted, away}).Draw(r, "how"); how == "deaf" {
		head.p.makeSubscriptionStale()
	} else {
		head.p.degrade(how, w.while(r, 3*time.Second))
	}
	synctest.Wait()
	w.requestRelease(holder)
}

// cancelUndeliveredGrant ends a wait whose grant the waiter has not heard of.
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
		w.reach("a grant is given back unheard")
	}
}

func (w *world) flushScripts(*rapid.T) {
	w.note("the server forgets its scripts")
	w.reach("the server forgets its scripts")
	w.server.forgetScripts()
}

// serverDegradedLocked notes that the server is not whole for d.
func (w *world) serverDegradedLocked(d time.Duration) {
	w.ill = time.Now()
	if sound := w.ill.Add(d + w.settling() + 4*w.lag); sound.After(w.sound) {
		w.sound = sound
	}
	for _, q := range w.requests {
		q.well = time.Time{}
	}
}

// refuseCommands lets the server take no writes, or nothing at all, for a while.
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
		w.note("the server says that no more")
		w.server.refuseWith(willing)
	})
}

// restartEmpty stops the server for a while. It comes back without any data.
func (w *world) restartEmpty(r *rapid.T) {
	w.note("the server restarts empty")
	w.reach("the server restarts empty")
	w.restartWith(nil, w.while(r, 5*time.Second))
}

// failOver stops the server for a while. It comes back with what it knew some time ago, as a replica does that had not
// got the last writes.
func (w *world) failOver(r *rapid.T) {
	data := draw(r, w.saved[max(0, len(w.saved)-3):], "data")
	w.note("the server fails over and loses its last writes")
	w.reach("the server fails over")
	w.restartWith(data, w.while(r, 5*time.Second))
}

func (w *world) restartWith(data []record, d time.Duration) {
	w.mu.Lock()
	w.serverDegradedLocked(d)
	w.mu.Unlock()
	w.server.stop()
	for _, p := range w.processes {
		p.link.Cut()
	}
	synctest.Wait()
	time.Sleep(d)
	w.server.start(data)
	w.dataLost(true)
	w.note("the server runs again")
}

// jumpClock sets the server's clock, forward or back. A failover brings nothing back from beyond that.
func (w *world) jumpClock(r *rapid.T) {
	by := duration(r, 30*time.Minute)
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

// recoverServer ends all that is wrong with the server but its clock.
func (w *world) recoverServer() {
	w.server.thaw()
	w.server.refuseWith(willing)
	w.server.forgetScripts()
}
