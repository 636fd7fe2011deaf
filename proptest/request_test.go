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

// request is a call for a lease, and what became of it.
type request struct {
	w      *world
	n      int
	p      *process
	use    string   // what the lease is for, as the primitive says it
	count  int      // of permits
	origin *request // in whose place the lease is to come
	adopts *request // whose token it makes a lease of
	try    bool
	fixed  bool          // not renewed
	hold   time.Duration // how long the lease is kept
	within time.Duration // what Release may take; 0: its context has ended before
	ctx    context.Context
	cancel context.CancelFunc
	let    chan struct{} // closed when the holder is told to release
	turn   chan *request // what the holder is to turn its lease into

	// Guarded by world.mu.
	began      time.Time
	started    bool          // the call has been made
	told       bool          // to release
	quits      bool          // its context is to end as soon as its process runs
	cancelled  time.Time     // when it did
	token      string        // once it was seen in the queue
	at         float64       // its place there
	stands     bool          // it is there now
	well       time.Time     // since when it is well off; zero: it is not
	stood      bool          // it was well off once, so it knows its place
	missing    bool          // it was seen out of the queue, waiting
	deaf       time.Time     // when it was out of the queue because its process is deaf
	holding    time.Time     // since when it was seen holding a lease, waiting
	longest    time.Duration // that its lease may be asked for; 0: the ttl
	returned   bool
	lease      *lockkeeper.Lease
	converting bool      // it is turned into another, or nobody knows whether it was
	until      time.Time // of a crashed one: its deadline; zero: its token was handed on
	ended      time.Time // when it no longer believed to hold the lock
}

func (q *request) String() string { return fmt.Sprintf("request %d", q.n) }

// ttl tells the request apart from all others.
func (q *request) ttl() time.Duration { return q.w.ttl + time.Duration(q.n)*time.Millisecond }

// lasts is how long the lease of the request may last from any moment on. The caller has the lock.
func (q *request) lasts() time.Duration {
	d := max(q.ttl(), q.longest)
	if q.origin != nil { // it lasts for no less than that would have
		d = max(d, q.origin.first().lasts())
	}
	return d
}

// newRequest draws a request of the process.
func (w *world) newRequest(r *rapid.T, p *process, try bool) *request {
	if len(w.requests) >= w.most() {
		r.Skip("too many")
	}
	q := &request{w: w, p: p, try: try, began: time.Now(), let: make(chan struct{}), turn: make(chan *request, 1)}
	w.kind.wants(r, q)
	q.fixed = rapid.Bool().Draw(r, "fixed") && rapid.Bool().Draw(r, "indeed")
	hold := w.scaled(time.Duration(rapid.SampledFrom([]int{0, 100, 1000, 5000, 20000, 60000}).Draw(r, "hold ms")) * time.Millisecond)
	q.within = time.Duration(rapid.SampledFrom([]int{1000, 0}).Draw(r, "release ms")) * time.Millisecond
	patience := time.Duration(rapid.SampledFrom([]int{0, 10000, 1000}).Draw(r, "patience ms")) * time.Millisecond
	if w.quick() && rapid.Bool().Draw(r, "less patience") {
		patience = w.scaled(patience)
	}
	w.enter(q, hold, false)
	if patience > 0 && !try {
		w.after(patience+211*time.Microsecond, q.cancelWait)
	}
	return q
}

// enter gives a request its number. Quietly: somebody else notes that it came.
func (w *world) enter(q *request, hold time.Duration, quietly bool) {
	q.ctx, q.cancel = context.WithCancel(context.Background())
	w.mu.Lock()
	defer w.mu.Unlock()
	q.n = len(w.requests)
	q.hold = hold + time.Duration(53+137*q.n)*time.Microsecond // no two requests do something at the same instant
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

// cancelWait ends the context of a request, when its process runs.
func (q *request) cancelWait() {
	w := q.w
	w.mu.Lock()
	if q.returned || q.p.state == crashed || !q.cancelled.IsZero() {
		w.mu.Unlock()
		return
	}
	if q.quits = q.p.state == frozen; q.quits {
		w.mu.Unlock()
		return
	}
	q.cancelled = time.Now()
	w.noteLocked("%v is cancelled", q)
	w.mu.Unlock()
	q.cancel()
	within := grace
	if q.origin != nil {
		within += time.Second // it learns first what has become of the lease that it has
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
	if !q.told {
		w.noteLocked("%v is told to release", q)
		q.told = true
		close(q.let)
	}
}

// run is what the program that uses the lock does.
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

// markStarted notes that the call is made now.
func (q *request) markStarted() {
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	q.began, q.started = time.Now(), true
}

// holdLease holds a lease, and turns it into another, until it releases it.
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
		case <-q.let:
			waits = false
		case <-lease.Done():
			waits = false
		case other := <-q.turn:
			if other.convertLease() {
				return
			}
		}
	}
	if !q.p.awaitRunning() {
		return
	}
	if lease.Err() == nil { // else isOver sees it
		w.mu.Lock()
		q.endsLocked()
		w.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(context.Background(), q.within)
	defer cancel()
	began := time.Now()
	err := lease.Release(ctx)
	q.checkReleased(time.Since(began), err)
}

// convertLease turns the lease of the request's origin into its own, and goes on with that. It says whether it has.
func (q *request) convertLease() bool {
	defer q.cancel()
	w, from := q.w, q.origin
	q.markStarted()
	w.mu.Lock()
	from.converting = true
	token := from.lease.Token()
	w.mu.Unlock()
	lease, err := w.kind.get(q)
	awake := q.p.awaitRunning()
	w.mu.Lock()
	// Unless it is known that it was not turned, the server may know it no more.
	from.converting = lease == nil && !errors.Is(err, rwlock.ErrUpgradeConflict)
	w.mu.Unlock()
	switch {
	case !awake:
		return true
	case lease == nil:
		q.checkRefused(err)
		return false
	}
	w.mu.Lock()
	from.endsLocked()
	gone := !q.cancelled.IsZero()
	if q.converting = lease.Token() == token; q.converting {
		w.tally["a lease is kept of which nobody knows whether it was turned into another"]++
	}
	w.mu.Unlock()
	q.checkGranted(lease)
	if gone { // it has a lease all the same, and gives it back
		w.requestRelease(q)
	}
	q.holdLease()
	return true
}

// believesHeld says whether a request believes to hold the lock.
func (q *request) believesHeld() bool {
	switch {
	case q.lease == nil || !q.ended.IsZero():
		return false
	case q.p.state == crashed:
		return time.Now().Before(q.until)
	}
	return q.lease.Err() == nil
}

// endsLocked notes when a request ceased to believe.
func (q *request) endsLocked() {
	if q.ended.IsZero() {
		q.ended = time.Now()
		q.w.noteLocked("%v believes no more", q)
	}
}

// checkRefused looks at a call that brought no lease.
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
	case q.adopts != nil:
		if errors.Is(err, lockkeeper.ErrLost) {
			if held && whole && q.p.isSteady() && !w.history.void[token] {
				w.breaksLocked(truth, "%v: %v", q, err)
			}
		} else if (want == nil || !errors.Is(err, want)) && w.ill.IsZero() {
			w.breaksLocked(truth, "%v: %v", q, err)
		}
		return
	case q.origin != nil, w.lowered && errors.Is(err, semaphore.ErrAboveLimit):
		return
	case q.try && errors.Is(err, lockkeeper.ErrNotAcquired):
		w.tally["a try is refused"]++
		return
	case (want == nil || !errors.Is(err, want)) && (q.try && whole || !q.try && w.ill.IsZero()):
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

// checkGranted looks at a call that brought a lease.
func (q *request) checkGranted(lease *lockkeeper.Lease) {
	w := q.w
	v := w.view()
	w.mu.Lock()
	defer w.mu.Unlock()
	q.returned, q.lease = true, lease
	w.noteLocked("%v is granted a lease, fence %d", q, lease.Fence())
	if lease.Err() != nil { // over before its process woke up
		q.ended = time.Now()
		return
	}
	w.tally["acquisitions"]++
	l, held := v.leases[lease.Token()]
	if !w.history.void[lease.Token()] && !q.converting {
		if !held {
			w.breaksLocked(truth, "%v has a lease that the server does not know", q)
		} else if l.fence != lease.Fence() {
			w.breaksLocked(truth, "%v has fence %d, and %d at the server", q, lease.Fence(), l.fence)
		}
	}
	w.checkBelievers()
	switch {
	case q.try:
		w.tally["a try is granted"]++
	case q.origin != nil:
		w.tally["a lease is turned into another"]++
	case q.adopts != nil:
		w.tally["a lease is adopted"]++
	case q.token == "":
		w.tally["granted at once"]++
	case w.history.heard[lease.Token()]:
		w.tally["granted by a message"]++
	case !q.holding.IsZero():
		w.tally["a message is lost and a heartbeat finds the grant"]++
	default:
		w.tally["granted by an answer to a heartbeat"]++
	}
}

// extend makes the lease end d from now.
func (q *request) extend(d time.Duration) {
	w := q.w
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := q.lease.Extend(ctx, d)
	if !q.p.awaitRunning() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked("%v is extended to %v: %v", q, d, err)
	switch {
	case err == nil:
		w.tally["a lease is extended"]++
	case q.believesHeld() && !q.converting && !w.closing && q.p.neverDegraded():
		w.breaksLocked(truth, "the extension of %v: %v", q, err)
	}
}

// first is the request that the token of the lease comes from.
func (q *request) first() *request {
	for q.adopts != nil {
		q = q.adopts
	}
	return q
}

// checkEnded looks at a lease that is held no more.
func (q *request) checkEnded() {
	w, token := q.w, q.lease.Token()
	now := w.server.now().UnixMicro()
	w.mu.Lock()
	defer w.mu.Unlock()
	if q.p.state == crashed || !q.ended.IsZero() {
		return
	}
	q.endsLocked()
	if over := now - w.history.ends[token]; over >= 0 && !q.converting && !w.history.void[token] {
		w.breaksLocked(belief, "%v, until %d µs after it", q, over)
	}
	if w.closing || errors.Is(q.lease.Err(), lockkeeper.ErrReleased) {
		return
	}
	w.tally["a lease is lost"]++
	if q.p.neverDegraded() && !q.fixed {
		w.breaksLocked(kept, "%v: %v", q, q.lease.Err())
	}
}

// checkReleased looks at what a release has returned.
func (q *request) checkReleased(took time.Duration, err error) {
	w := q.w
	v := w.view()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked("%v is released: %v", q, err)
	limit := q.within
	if limit == 0 {
		limit = time.Second // see Lease.Release
	}
	if took > limit+grace && q.p.state != frozen {
		w.breaksLocked(bounded, "the release of %v took %v", q, took)
	}
	_, held := v.leases[q.lease.Token()]
	switch {
	case w.closing, q.p.state != running:
	case err == nil && held && !w.history.void[q.lease.Token()]:
		w.breaksLocked(truth, "%v has released and still holds", q)
	case err != nil && q.p.neverDegraded() && !q.converting && !(q.fixed && errors.Is(err, lockkeeper.ErrLost)):
		w.breaksLocked(truth, "the release of %v: %v", q, err)
	}
}

// checkState compares what lies at the server with what should, when everything stands still.
func (w *world) checkState() {
	synctest.Wait()
	v := w.view()
	var quit []*request
	w.mu.Lock()
	now := time.Now()
	inLine := map[int]int{} // numbers of requests
	for i, y := range v.queue {
		inLine[w.terms(y.token).number] = i + 1
	}
	holds := map[int]bool{}
	for token := range v.leases {
		if !w.history.left[token] { // else a copy of what was given up has come, and its grave was lost
			holds[w.terms(token).number] = true
		}
	}
	for _, q := range w.requests {
		if inLine[q.n] > 0 || holds[q.n] {
			q.p.lined = now
		}
	}
	for _, q := range w.requests {
		i := inLine[q.n] - 1
		q.stands = i >= 0
		if q.returned || q.p.state == crashed {
			continue
		}
		if q.stands {
			q.token = v.queue[i].token
		}
		if q.quits && q.p.state != frozen {
			quit = append(quit, q)
			continue
		}
		q.missing = q.missing || q.token != "" && !q.stands && !holds[q.n]
		if !holds[q.n] || q.p.state != running {
			q.holding = time.Time{}
		} else if q.holding.IsZero() {
			q.holding = now
		}
		if holds[q.n] && q.p.state == frozen {
			w.tally["somebody frozen is granted a lease"]++
		}
		above := w.lowered && q.count > 1 // perhaps it may not wait any more
		// One that cannot be told of its grant learns of it at its next heartbeat, which may be after its end. Then it comes back.
		blind := w.terms(q.token).cannot && q.ttl() < w.period+slack+4*w.lag
		if !q.p.isSteady() || !q.cancelled.IsZero() || q.origin != nil || q.adopts != nil || above || blind {
			continue
		}
		settled := now.Sub(q.began) > w.settling() && now.Sub(q.deaf) > w.settling() && now.Sub(q.p.steady) > w.settling() && now.Sub(w.sound) > w.settling()
		switch {
		case q.stands && q.well.IsZero():
			w.checkRejoinedLocked(q, v.queue[i].at)
		case !q.stands && !holds[q.n] && !q.well.IsZero() && now.Sub(q.p.deafened) < time.Minute:
			// Its keeper has found out, by a message that did not come, and nobody listens while it replaces the subscription.
			q.well, q.deaf = time.Time{}, now
		case !q.stands && !holds[q.n] && !q.well.IsZero():
			w.breaksLocked(place, "%v does not stand in the queue", q)
		case !q.stands && !holds[q.n] && settled && (w.kind.queuesAll() || now.Sub(q.p.lined) > w.settling()):
			w.breaksLocked(live, "%v neither waits nor holds after %v", q, now.Sub(q.began))
		case holds[q.n] && settled && now.Sub(q.holding) > w.period+slack+4*w.lag:
			w.breaksLocked(progress, "%v was granted a lease %v ago and does not know", q, now.Sub(q.holding))
		}
	}
	w.checkOwed(v)
	w.checkLive(v, holds)
	w.checkBelievers()
	w.mu.Unlock()
	for _, q := range quit {
		q.quits = false
		q.cancelWait()
	}
	if len(quit) > 0 {
		synctest.Wait()
	}
	w.fail()
}

// checkRejoinedLocked looks at a waiter that is well off now, perhaps again.
func (w *world) checkRejoinedLocked(q *request, at float64) {
	p := q.p
	// A heartbeat left at most a period before the process was hurt, and another at most as much after it came back as
	// is waited for a connection.
	short := p.hurt.IsZero() || p.back.Sub(p.hurt) < w.life()-w.settling()
	if p.copied.After(p.hurt) {
		short = false // a copy of its request may have stood in line for it while it was out of it, and gets a new place
	}
	switch {
	case at == q.at:
		if q.missing {
			w.tally["a waiter comes back to its place"]++
		}
	case short && q.stood && w.ill.IsZero(): // else its answer was lost, so it did not know that it waits
		w.breaksLocked(comeback, "%v has come from %.0f to %.0f", q, q.at, at)
	case q.missing:
		w.tally["a waiter comes back at the end"]++
	}
	q.missing = false
	q.at, q.well, q.stood = at, time.Now(), true
}
