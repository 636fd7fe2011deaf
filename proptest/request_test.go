package proptest

import (
	"context"
	"errors"
	"fmt"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"pgregory.net/rapid"
)

// request is a call for a lease, and its result.
type request struct {
	w              *world
	n              int
	p              *process
	use            string        // the use of the lease, as the primitive defines it
	count          int           // of permits
	yield          time.Duration // of a mutex: for how long its release may leave the key free
	origin         *request      // of a conversion: whose lease it converts
	extendOrigin   time.Duration // to which time that is extended before; 0: it is not
	patience       time.Duration // after which it is cancelled; 0: it is not
	again          int           // how many others follow
	adopts         *request      // whose token it adopts
	try            bool
	fixed          bool          // not renewed
	lifetimes      int           // its MaxLifetime, in ttls; 0: none
	note           string        // of the call
	hold           time.Duration // how long the lease is kept
	releaseTimeout time.Duration // the timeout of Release; 0: its context has ended before
	ctx            context.Context
	cancel         context.CancelFunc
	releaseCh      chan struct{} // closed when the holder should release
	convertTo      chan *request // conversions for the holder to make

	// Guarded by world.mu.
	began            time.Time
	started          bool          // the call has been made
	releaseRequested bool          // to release
	cancelOnThaw     bool          // to be cancelled as soon as its process is thawed
	cancelled        time.Time     // when it was cancelled
	token            string        // set when it was first seen in the queue
	position         float64       // its position in the queue
	queued           bool          // it is in the queue now
	uncounted        bool          // it did not count on the subscription of its process when it was seen in the queue
	healthySince     time.Time     // since when it is healthy; zero: it is not
	positionKnown    bool          // it was healthy once, so its keeper knows its position
	leftQueue        bool          // it was seen outside the queue while waiting
	queuedAt         time.Time     // when it was last seen in the queue
	staleAt          time.Time     // when it was outside the queue because of a stale subscription
	holdingSince     time.Time     // since when it has held a lease without knowing it
	heldSince        time.Time     // since when it has held its lease as far as it knows
	extended         time.Duration // the longest for which it was extended; 0: it was not
	until            time.Time     // the latest time until which it was
	used             []string      // features that were used for it
	longest          time.Duration // the maximum of its lease; 0: the ttl
	returned         bool
	lease            *lockkeeper.Lease
	writes           bool      // its holder relies on that it writes
	converting       bool      // a call that converts it is under way
	converted        time.Time // when the last such call returned
	fenceInDoubt     bool      // the server may have a larger fence than its holder knows
	deadline         time.Time // of a crashed process: its deadline; zero: its token was handed over
	ended            time.Time // when its holder knew that it had ended
	broken           bool      // somebody breaks it
	told             time.Time // when its keeper was sent a message of that, which it should receive; zero: it was not
}

func (q *request) String() string { return fmt.Sprintf("request %d", q.n) }

// ttl returns a ttl that identifies the request.
func (q *request) ttl() time.Duration { return q.w.ttl + time.Duration(q.n)*time.Millisecond }

// lasts returns how long the lease of the request may last from any moment on. The caller holds the mutex.
func (q *request) lasts() time.Duration { return max(q.ttl(), q.longest) }

// requestOf returns a request of the process.
func (w *world) requestOf(p *process) *request {
	return &request{w: w, p: p, began: time.Now(), releaseTimeout: time.Second, releaseCh: make(chan struct{}), convertTo: make(chan *request, 1)}
}

// newRequest draws a request of the process.
func (w *world) newRequest(r *rapid.T, p *process, try bool) *request {
	if len(w.requests) >= w.most() {
		r.Skip("too many")
	}
	q := w.requestOf(p)
	q.try = try
	w.kind.wants(r, q)
	q.fixed = rapid.Bool().Draw(r, "fixed") && rapid.Bool().Draw(r, "indeed")
	hold := w.scaled(time.Duration(rapid.SampledFrom([]int{0, 100, 1000, 5000, 20000, 60000}).Draw(r, "hold ms")) * time.Millisecond)
	q.releaseTimeout = time.Duration(rapid.SampledFrom([]int{1000, 0}).Draw(r, "release ms")) * time.Millisecond
	patience := time.Duration(rapid.SampledFrom([]int{0, 10000, 1000}).Draw(r, "patience ms")) * time.Millisecond
	if w.quick() && rapid.Bool().Draw(r, "less patience") {
		patience = w.scaled(patience)
	}
	if w.now(r, lifetimes, 8) {
		q.lifetimes = rapid.IntRange(1, 6).Draw(r, "ttls")
	}
	if w.now(r, notes, 8) {
		q.note = "job 7"
	}
	w.enter(q, hold, false)
	if patience > 0 && !try {
		w.after(patience+211*time.Microsecond, q.cancelWait)
	}
	return q
}

// enter registers a request. quietly: the caller logs it.
func (w *world) enter(q *request, hold time.Duration, quietly bool) {
	q.ctx, q.cancel = context.WithCancel(lockkeeper.WithNote(context.Background(), q.note))
	w.mu.Lock()
	defer w.mu.Unlock()
	for feature, uses := range map[string]bool{lifetimes: q.lifetimes > 0, notes: q.note != "", adopts: q.adopts != nil} {
		if uses {
			w.usesLocked(q, feature)
		}
	}
	if q.origin != nil {
		w.usesLocked(q.origin, converts)
	}
	q.n = len(w.requests)
	q.hold = hold + time.Duration(53+137*q.n)*time.Microsecond // no two requests act at the same instant
	w.requests = append(w.requests, q)
	if quietly {
		return
	}
	what := ""
	if q.use != "" {
		what = " for " + q.use
	}
	if q.count > 0 {
		what += fmt.Sprintf(" of %d", q.count)
	}
	w.noteLocked("process %d: %v%s, try %v, fixed %v, hold %v", q.p.id, q, what, q.try, q.fixed, q.hold)
}

// cancelWait cancels a request when its process runs.
func (q *request) cancelWait() {
	w := q.w
	w.mu.Lock()
	if q.returned || q.p.state == crashed || !q.cancelled.IsZero() {
		w.mu.Unlock()
		return
	}
	if q.cancelOnThaw = q.p.state == frozen; q.cancelOnThaw {
		w.mu.Unlock()
		return
	}
	q.cancelled = time.Now()
	w.noteLocked("%v is cancelled", q)
	w.mu.Unlock()
	q.cancel()
	within := grace
	if q.extendOrigin > 0 {
		within += time.Second + grace
	}
	w.after(within, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !q.returned && q.p.state != frozen && q.p.state != crashed {
			w.breaksLocked(bounded, "%v", q)
		}
	})
}

// requestRelease makes a holder release.
func (w *world) requestRelease(q *request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !q.releaseRequested {
		w.noteLocked("%v should release", q)
		q.releaseRequested = true
		close(q.releaseCh)
	}
}

// run is the program that uses the lock.
func (q *request) run() {
	defer q.cancel()
	q.markStarted()
	lease, err := q.w.kind.get(q)
	if !q.p.awaitRunning() {
		return
	}
	if lease == nil {
		q.checkRefused(err)
		return
	}
	q.checkGranted(lease)
	q.holdLease()
}

// markStarted records that the call is made now.
func (q *request) markStarted() {
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	q.began, q.started = time.Now(), true
}

// holdLease holds a lease, and converts it, until it releases it.
func (q *request) holdLease() {
	w, lease := q.w, q.lease
	w.actors.Go(func() {
		<-lease.Done()
		q.checkEnded()
	})
	hold := time.NewTimer(q.hold)
	defer hold.Stop()
	for waits := true; waits; {
		select {
		case <-hold.C:
			waits = false
		case <-q.releaseCh:
			waits = false
		case <-lease.Done():
			waits = false
		case other := <-q.convertTo:
			for other != nil {
				awake, done := other.convertLease()
				if !awake {
					return
				}
				if done {
					hold.Reset(other.hold)
				}
				other = other.nextConversion(done)
			}
		}
	}
	if !q.p.awaitRunning() {
		return
	}
	if lease.Err() == nil { // otherwise checkEnded records it
		w.mu.Lock()
		q.endsLocked()
		w.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(context.Background(), q.releaseTimeout)
	defer cancel()
	began := time.Now()
	err := lease.Release(ctx)
	q.checkReleased(time.Since(began), err)
}

// believesHeld reports whether the holder considers its lease held.
func (q *request) believesHeld() bool {
	switch {
	case q.lease == nil || !q.ended.IsZero():
		return false
	case q.p.state == crashed:
		return time.Now().Before(q.deadline)
	}
	return q.lease.Err() == nil
}

// endsLocked records when the holder knew that its lease had ended.
func (q *request) endsLocked() {
	if q.ended.IsZero() {
		q.ended = time.Now()
		q.w.noteLocked("%v no longer holds its lease", q)
	}
}

// checkRefused checks a call that returned no lease.
func (q *request) checkRefused(err error) {
	w := q.w
	token, held := "", false
	if q.adopts != nil {
		token = q.adopts.lease.Token()
		_, held = w.view().leases[token]
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	q.returned = true
	w.noteLocked("%v: %v", q, err)
	want := q.ctx.Err()
	whole := q.p.neverDegraded()
	switch {
	case w.closing && errors.Is(err, lockkeeper.ErrClosed):
		return
	case q.unacknowledged(err):
		w.tally["a grant is not acknowledged"]++
		return
	case q.adopts != nil:
		if errors.Is(err, lockkeeper.ErrLost) {
			if held && whole && q.p.isSteady() && !w.history.unknownLeases[token] {
				w.breaksLocked(truth, "%v: %v", q, err)
			}
		} else if (want == nil || !errors.Is(err, want)) && w.degradedAt.IsZero() {
			w.breaksLocked(truth, "%v: %v", q, err)
		}
		return
	case q.broken && errors.Is(err, lockkeeper.ErrNotAcquired) && want == nil:
		w.tally["a broken wait ends"]++
		return
	case w.lowered && errors.Is(err, semaphore.ErrAboveLimit):
		return
	case q.try && errors.Is(err, lockkeeper.ErrNotAcquired):
		w.tally["a try is refused"]++
		return
	case (want == nil || !errors.Is(err, want)) && (q.try && whole || !q.try && w.degradedAt.IsZero()):
		w.breaksLocked(truth, "%v: %v", q, err)
	case !q.try && whole && w.lag == 0 && !errors.Is(err, lockkeeper.ErrNotAcquired):
		w.breaksLocked(truth, "%v: %v", q, err)
	}
	for _, not := range []error{lockkeeper.ErrLost, lockkeeper.ErrReleased, lockkeeper.ErrInvalid, lockkeeper.ErrClosed, rwlock.ErrUpgradeConflict} {
		if errors.Is(err, not) {
			w.breaksLocked(truth, "%v: %v", q, err)
		}
	}
	if q.token != "" {
		w.tally["a wait is cancelled"]++
	}
}

// checkGranted checks a call that returned a lease.
func (q *request) checkGranted(lease *lockkeeper.Lease) {
	w := q.w
	v := w.view()
	w.mu.Lock()
	defer w.mu.Unlock()
	q.returned, q.lease, q.heldSince = true, lease, time.Now()
	q.writes = q.use == writing && q.adopts == nil || q.adopts != nil && q.adopts.writes
	w.checkNoteLocked(q)
	w.noteLocked("%v is granted a lease, fence %d", q, lease.Fence())
	if lease.Err() != nil { // expired before its process was thawed
		q.ended = time.Now()
		return
	}
	w.tally["acquisitions"]++
	l, held := v.leases[lease.Token()]
	if !w.history.unknownLeases[lease.Token()] {
		if !held {
			w.breaksLocked(truth, "%v has a lease that is not at the server", q)
		} else if l.fence != lease.Fence() {
			w.breaksLocked(truth, "%v has fence %d, and %d at the server", q, lease.Fence(), l.fence)
		}
	}
	w.checkBelievers()
	switch {
	case q.try:
		w.tally["a try is granted"]++
	case q.adopts != nil:
		w.tally["a lease is adopted"]++
	case q.token == "":
		w.tally["granted at once"]++
	case w.history.notified[lease.Token()]:
		w.tally["granted by a message"]++
	case !q.holdingSince.IsZero():
		w.tally["a message is lost and a heartbeat finds the grant"]++
	default:
		w.tally["granted by an answer to a heartbeat"]++
	}
}

// extend extends the lease to d from now.
func (q *request) extend(d time.Duration) {
	w := q.w
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	w.mu.Lock()
	w.usesLocked(q, extends)
	w.mu.Unlock()
	began := time.Now()
	err := q.lease.Extend(ctx, d)
	if !q.p.awaitRunning() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked("%v is extended to %v: %v", q, d, err)
	w.extendedLocked(q, d, began, err)
	switch {
	case err == nil:
		w.tally["a lease is extended"]++
	case q.lifetimes > 0 && errors.Is(err, lockkeeper.ErrInvalid):
		w.tally["an extension beyond MaxLifetime is refused"]++
	case q.believesHeld() && !w.closing && q.p.neverDegraded() && !q.broken:
		w.breaksLocked(truth, "the extension of %v: %v", q, err)
	}
}

// first returns the request from which the token of the lease comes.
func (q *request) first() *request {
	for q.adopts != nil {
		q = q.adopts
	}
	return q
}

// checkEnded checks a lease that has ended.
func (q *request) checkEnded() {
	w, token := q.w, q.lease.Token()
	now := w.server.now().UnixMicro()
	w.mu.Lock()
	defer w.mu.Unlock()
	if q.p.state == crashed || !q.ended.IsZero() {
		return
	}
	q.endsLocked()
	if over := now - w.history.ends[token]; over >= 0 && !w.history.unknownLeases[token] {
		w.breaksLocked(belief, "%v, until %d µs after it", q, over)
	}
	if w.closing || errors.Is(q.lease.Err(), lockkeeper.ErrReleased) {
		return
	}
	w.tally["a lease is lost"]++
	if w.livedLocked(q) {
		return
	}
	if q.broken {
		w.tally["a broken lease ends"]++
		return
	}
	if q.p.neverHarmed() && !q.fixed {
		w.breaksLocked(kept, "%v: %v", q, q.lease.Err())
	}
}

// checkReleased checks the result of a release.
func (q *request) checkReleased(took time.Duration, err error) {
	w := q.w
	v := w.view()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked("%v is released: %v", q, err)
	limit := q.releaseTimeout
	if limit == 0 {
		limit = time.Second // see Lease.Release
	}
	if took > limit+grace && q.p.state != frozen {
		w.breaksLocked(bounded, "the release of %v took %v", q, took)
	}
	_, held := v.leases[q.lease.Token()]
	switch {
	case w.closing, q.p.state != running:
	case err == nil && held && !w.history.unknownLeases[q.lease.Token()]:
		w.breaksLocked(truth, "%v has released and still holds", q)
	case err != nil && q.p.neverDegraded() && !((q.fixed || q.broken || q.lifetimes > 0) && errors.Is(err, lockkeeper.ErrLost)):
		w.breaksLocked(truth, "the release of %v: %v", q, err)
	}
}

// checkState checks the state when no goroutine runs.
func (w *world) checkState() {
	synctest.Wait()
	v := w.view()
	var quit []*request
	w.mu.Lock()
	now := time.Now()
	inLine := map[int]int{} // by request
	for i, y := range v.queue {
		inLine[w.terms(y.token).number] = i + 1
	}
	holds := map[int]bool{}
	for token := range v.leases {
		if !w.history.everGivenUp[token] { // otherwise a duplicate of a released request arrived after its tombstone was lost
			holds[w.terms(token).number] = true
		}
	}
	if u := w.requestLocked(v.upgrade); u != nil && v.leases[v.upgradeOf].writes && !w.history.everGivenUp[v.upgrade] {
		holds[u.n] = true
	}
	for _, q := range w.requests {
		if inLine[q.n] > 0 || holds[q.n] {
			q.p.lastActive = now
		}
	}
	for _, q := range w.requests {
		i := inLine[q.n] - 1
		q.queued = i >= 0
		q.uncounted = q.uncounted || v.uncounted[q.token]
		if q.returned || q.p.state == crashed {
			continue
		}
		if q.queued {
			q.token, q.queuedAt = v.queue[i].token, now
			if q.origin != nil {
				w.checkUpgradeNoteLocked(q)
			}
		}
		if q.cancelOnThaw && q.p.state != frozen {
			quit = append(quit, q)
			continue
		}
		q.leftQueue = q.leftQueue || q.token != "" && !q.queued && !holds[q.n]
		if !holds[q.n] || q.p.state != running {
			q.holdingSince = time.Time{}
		} else if q.holdingSince.IsZero() {
			q.holdingSince = now
		}
		if holds[q.n] && q.p.state == frozen {
			w.tally["a frozen process is granted a lease"]++
		}
		above := w.lowered && q.count > 1 // perhaps it is above the limit
		// A waiter that does not count on its subscription may learn of its grant by its next heartbeat, after the lease has
		// expired. Then it rejoins.
		blind := q.uncounted && q.ttl() < w.period+slack+4*w.lag
		// A grant that is not acknowledged is given back before the call returns.
		givenBack := w.replicas && !q.p.neverDegraded()
		if !q.p.isSteady() || !q.cancelled.IsZero() || w.convertsOrEnds(v, q) || q.adopts != nil || above || blind || givenBack || q.broken {
			continue
		}
		settled := now.Sub(q.began) > w.settling() && now.Sub(q.staleAt) > w.settling() && now.Sub(q.p.steadyFrom) > w.settling() && now.Sub(w.healthyFrom) > w.settling()
		switch {
		case q.queued && q.healthySince.IsZero():
			w.checkRejoinedLocked(q, v.queue[i].at)
		case !q.queued && !holds[q.n] && !q.healthySince.IsZero() && now.Sub(q.p.staleSince) < time.Minute:
			// Its keeper has noticed the stale subscription, and nothing is subscribed while it is replaced.
			q.healthySince, q.staleAt = time.Time{}, now
		case !q.queued && !holds[q.n] && !q.healthySince.IsZero():
			w.breaksLocked(place, "%v is not in the queue", q)
		case !q.queued && !holds[q.n] && settled && (w.kind.queuesAll() || now.Sub(q.p.lastActive) > w.settling()):
			w.breaksLocked(live, "%v neither waits nor holds after %v", q, now.Sub(q.began))
		case holds[q.n] && settled && now.Sub(q.holdingSince) > w.period+slack+4*w.lag:
			w.breaksLocked(progress, "%v was granted a lease %v ago and does not know it", q, now.Sub(q.holdingSince))
		}
	}
	for _, q := range w.requests {
		w.checkLifetimeLocked(q)
		w.checkExtensionLocked(v, q)
		w.checkReadsLocked(v, q)
	}
	w.checkBrokenLocked()
	w.checkOwed(v)
	w.checkLive(v, holds)
	w.checkBelievers()
	w.mu.Unlock()
	for _, q := range quit {
		q.cancelOnThaw = false
		q.cancelWait()
	}
	if len(quit) > 0 {
		synctest.Wait()
	}
	w.fail()
}

// checkRejoinedLocked checks a waiter that is healthy, perhaps again.
func (w *world) checkRejoinedLocked(q *request, at float64) {
	p := q.p
	// The last heartbeat was sent at most an interval before the process was degraded, and the next one at most a
	// connection's wait after it recovered.
	short := p.degradedAt.IsZero() || p.recoveredAt.Sub(p.degradedAt) < w.heartbeatTimeout()-w.settling()
	if p.lastDuplicate.After(p.degradedAt) {
		short = false // a duplicate of its request may have taken a new place in the queue while it was outside
	}
	switch {
	case at == q.position:
		if q.leftQueue {
			w.tally["a waiter rejoins at its old position"]++
		}
	case short && q.positionKnown && w.degradedAt.IsZero(): // otherwise its reply was lost, so it did not know that it waits
		w.breaksLocked(comeback, "%v moved from %.0f to %.0f", q, q.position, at)
	case q.leftQueue:
		w.tally["a waiter rejoins at the end"]++
	}
	q.leftQueue = false
	q.position, q.healthySince, q.positionKnown = at, time.Now(), true
}
