package proptest

import (
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"pgregory.net/rapid"
)

func (w *world) crashes(r *rapid.T) {
	draw(r, w.in(running, lossy, muted, away, frozen), "process").crash()
}

func (w *world) holderCrashes(r *rapid.T) { draw(r, w.holders(), "holder").p.crash() }

// handsOn crashes a process that has written down the token of a lease. Another makes a lease of it, perhaps too late.
func (w *world) handsOn(r *rapid.T) {
	from := draw(r, w.content(), "holder")
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
	from.p.crashes(from)
	later := time.After(w.while(r, 10*time.Second))
	w.actors.Go(func() {
		select {
		case <-later:
		case <-q.ctx.Done():
		}
		q.run()
	})
}

// hurts brings a process into another state for a while.
func (w *world) hurts(s state, longest time.Duration) func(*rapid.T) {
	return func(r *rapid.T) { draw(r, w.in(running), "process").harm(s, w.while(r, longest)) }
}

// headFreezes freezes the first waiter and lets the holder release, so that it is granted a lock that it cannot use.
func (w *world) headFreezes(r *rapid.T) {
	head := w.head(r)
	holder := draw(r, w.holders(), "holder")
	if holder.p != head.p && rapid.Bool().Draw(r, "until its heartbeat has lapsed") {
		head.p.harm(frozen, w.life()+w.while(r, 20*time.Second))
		w.advance(w.life())
		w.tell(holder)
		return
	}
	head.p.harm(frozen, w.while(r, 20*time.Second))
	if holder.p != head.p {
		w.tell(holder)
	}
}

// neverConfirmed lets the holder release while no request of the first waiter arrives, though it hears: it is granted a
// lease that it cannot make whole.
func (w *world) neverConfirmed(r *rapid.T) {
	head, holder := w.head(r), draw(r, w.holders(), "holder")
	if head.p == holder.p {
		r.Skip("the release would not arrive either")
	}
	head.p.link.Break("evalsha", 1<<30, rapid.SampledFrom([]faultnet.Fate{faultnet.LoseRequest, faultnet.SwallowReply}).Draw(r, "fate"))
	head.p.harm(lossy, w.life()+w.while(r, 20*time.Second))
	w.reach("a grant cannot be confirmed")
	w.tell(holder)
}

// fates is what becomes of requests.
var fates = []faultnet.Fate{faultnet.LoseRequest, faultnet.CutReply, faultnet.TearReply, faultnet.SwallowReply}

// losesAnswers loses up to three requests or answers.
func (w *world) losesAnswers(r *rapid.T) {
	p := draw(r, w.in(running), "process")
	fate := rapid.SampledFrom(fates).Draw(r, "fate")
	p.link.Break("evalsha", rapid.IntRange(1, 3).Draw(r, "how many"), fate)
	p.harm(lossy, w.while(r, 3*time.Second))
}

// answersAreSlow lets what a process sends, or what it is told, take long: from nothing to several ttls, each message another
// time. So a grant can be over when it is heard of.
func (w *world) answersAreSlow(r *rapid.T) {
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
	p.harm(slow, d+w.while(r, 10*time.Second))
}

// grantComesLate lets somebody ask for a lock that is free, and the answer takes long: the process is frozen when it comes, or
// the server is when the request does, or it is long under way.
func (w *world) grantComesLate(r *rapid.T) {
	p := draw(r, w.in(running), "process")
	for _, q := range w.waiters() {
		q.quit()
	}
	for _, q := range w.holders() {
		w.tell(q)
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
		p.harm(frozen, d)
		p.link.Slow(0, 0)
	case "server":
		w.serverFreezesFor(d)
		w.launch(q)
	default:
		p.link.Slow(d/10, d)
		p.harm(slow, d+w.while(r, 10*time.Second))
		w.launch(q)
	}
}

// serverFreezes lets the server stand still. It takes what is sent to it, runs it when it goes on, and answers then.
// Connections are not made meanwhile: those of a real server would be, but who makes a subscription holds a lock until it is
// answered, and while goroutines wait for a lock the clock of a bubble stands still.
func (w *world) serverFreezes(r *rapid.T) {
	w.serverFreezesFor(w.late(r))
}

func (w *world) serverFreezesFor(d time.Duration) {
	w.mu.Lock()
	w.noteLocked("the server freezes for %v", d)
	w.tally["the server freezes"]++
	w.serverHurtLocked(d)
	w.mu.Unlock()
	synctest.Wait() // no connection is being made
	w.server.freeze()
	w.after(d, func() {
		w.note("the server goes on")
		w.server.thaw()
	})
}

// copyComesLate loses requests or answers of a process. What it has sent comes to the server once more, long after it
// has given up on it: less than a grave lasts, which is what the protocol counts on.
func (w *world) copyComesLate(r *rapid.T) {
	p := draw(r, w.in(running), "process")
	fate := rapid.SampledFrom(fates).Draw(r, "fate")
	p.link.Break("evalsha", rapid.IntRange(1, 3).Draw(r, "how many"), fate|faultnet.Copy)
	during := w.while(r, 3*time.Second)
	p.harm(lossy, during)
	w.after(during+w.while(r, 20*time.Second), func() { // when none is kept any more
		w.mu.Lock()
		w.noteLocked("copies of what process %d has sent come", p.id)
		w.tally["copies come late"]++
		p.copied = time.Now()
		w.mu.Unlock()
		w.actors.Go(func() { _ = p.link.Replay() })
	})
}

// losesMessage lets the holder release while the first waiter does not hear: it is deaf and nobody knows, or its
// subscription or all of its connections are cut and not made again for a while.
func (w *world) losesMessage(r *rapid.T) {
	head := w.head(r)
	holder := draw(r, w.holders(), "holder")
	if how := rapid.SampledFrom([]state{"deaf", muted, away}).Draw(r, "how"); how == "deaf" {
		head.p.deafen()
	} else {
		head.p.harm(how, w.while(r, 3*time.Second))
	}
	synctest.Wait()
	w.tell(holder)
}

// neverHeard ends a wait whose grant the waiter has not heard of.
func (w *world) neverHeard(r *rapid.T) {
	head, holder := w.head(r), draw(r, w.holders(), "holder")
	head.p.deafen()
	w.tell(holder)
	synctest.Wait()
	v := w.view()
	w.mu.Lock()
	_, unheard := v.leases[head.token]
	unheard = unheard && !head.returned
	w.mu.Unlock()
	head.quit()
	if unheard {
		w.reach("a grant is given back unheard")
	}
}

func (w *world) forgetsScripts(*rapid.T) {
	w.note("the server forgets its scripts")
	w.reach("the server forgets its scripts")
	w.server.forgetScripts()
}

// serverHurtLocked notes that the server is not whole for d.
func (w *world) serverHurtLocked(d time.Duration) {
	w.ill = time.Now()
	if sound := w.ill.Add(d + w.settling() + 4*w.lag); sound.After(w.sound) {
		w.sound = sound
	}
	for _, q := range w.requests {
		q.well = time.Time{}
	}
}

// refuses lets the server take no writes, or nothing at all, for a while.
func (w *world) refuses(r *rapid.T) {
	why := rapid.SampledFrom([]refusal{full, replica, loading}).Draw(r, "why")
	d := w.while(r, 12*time.Second)
	w.mu.Lock()
	w.noteLocked("the server says %s for %v", why, d)
	w.tally["the server says "+string(why)]++
	w.serverHurtLocked(d)
	w.mu.Unlock()
	w.server.refuseWith(why)
	w.after(d, func() {
		w.note("the server says that no more")
		w.server.refuseWith(willing)
	})
}

// restarts stops the server for a while. It comes back without any data.
func (w *world) restarts(r *rapid.T) {
	w.note("the server restarts empty")
	w.reach("the server restarts empty")
	w.loses(nil, w.while(r, 5*time.Second))
}

// failsOver stops the server for a while. It comes back with what it knew some time ago, as a replica does that had not
// got the last writes.
func (w *world) failsOver(r *rapid.T) {
	data := draw(r, w.saved[max(0, len(w.saved)-3):], "data")
	w.note("the server fails over and loses its last writes")
	w.reach("the server fails over")
	w.loses(data, w.while(r, 5*time.Second))
}

func (w *world) loses(data []record, d time.Duration) {
	w.mu.Lock()
	w.serverHurtLocked(d)
	w.mu.Unlock()
	w.server.stop()
	for _, p := range w.processes {
		p.link.Cut()
	}
	synctest.Wait()
	time.Sleep(d)
	w.server.start(data)
	w.losesData(true)
	w.note("the server runs again")
}

// jumps sets the server's clock, forward or back. A failover brings nothing back from beyond that.
func (w *world) jumps(r *rapid.T) {
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
	w.serverHurtLocked(0)
	w.mu.Unlock()
	was := w.view().now
	w.server.jump(by)
	if by > 0 {
		w.losesData(false)
	} else {
		v := w.view()
		w.mu.Lock()
		w.history.last = v
		w.kind.isHurt(false, was, v.now)
		w.mu.Unlock()
	}
}

// serverRecovers ends all that is wrong with the server but its clock.
func (w *world) serverRecovers() {
	w.server.thaw()
	w.server.refuseWith(willing)
	w.server.forgetScripts()
}
