package proptest

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/faultnet"
	"pgregory.net/rapid"
)

// The promises of the fair lock, whatever happens to the processes that use it. A waiter is well off while its process
// runs, is connected and subscribed, and has been for long enough to have beaten; what is promised to waiters in
// general is promised to those.
const (
	// Of all who believe to hold the lock, from the return of Lock to the call of Release or the end of the lease,
	// there is one at a time; also if some of them are cut off, frozen or dead.
	exclusion = "one holder at a time"
	// Each lease has a larger fence than those before it.
	fences = "fences rise"
	// Nobody is granted the lock while a waiter that is well off stands before it: in the order of tickets, and those
	// who have no ticket, because they were granted the lock at once, come after all who waited when they came. Tickets
	// rise.
	order = "waiters are served in order"
	// A waiter that is well off stands in the queue, or holds the lock, and is never moved.
	place = "a waiter keeps its place"
	// One that was well off, and then away for so short a time that no heartbeat can have lapsed, has its old place when
	// it is back.
	comeback = "who was away for a moment keeps its place"
	// Somebody is granted the lock in time. With nobody who believes to hold it, and a waiter who is well off: within a
	// heartbeat (a lost message, or a lease that ended by itself) of when leases that nobody uses any more are over.
	// Such leases can be those of a holder that was hurt, and those of a process that froze or whose requests were lost,
	// from then on for the longer of the ttl (a holder) and a heartbeat's lifetime (all who wait there, together). A
	// waiter that has crashed or is cut off costs nothing.
	progress = "somebody is granted the lock in time"
	// A call ends when its context does.
	bounded = "a call returns when its context has ended"
	// What calls return is so: who is granted the lock has it at the server, fails only for the reason that is told,
	// and gives the lock back. A try succeeds if the lock is free and nobody waits, and fails if it is held.
	truth = "calls tell the truth"
	// A lease that is renewed, by a process to which nothing happened, is not lost.
	kept = "a lease lasts"
	// When all have gone nothing is left behind: at once but for the facts of the name if nothing was broken; else when
	// leases, heartbeats and graves are over. In the end the facts go, too.
	nothing = "nothing is left behind"
)

const (
	slack = 250 * time.Millisecond // the margin of a lease of ten seconds, and whole milliseconds
	grace = 50 * time.Millisecond  // in which a call returns whose context has ended
)

// Keys of the lock.
const (
	lockKey  = "{lock:x}:fair:holders"
	queueKey = "{lock:x}:fair:queue"
	beatsKey = "{lock:x}:fair:beats"
)

// fairWorld is a world in which processes use one fair lock.
type fairWorld struct {
	*world
	ttl     time.Duration // requests ask for this and their number in ms, so that a token tells its request
	calm    bool          // nothing is broken
	actors  sync.WaitGroup
	pushed  sync.Map // tokens that a message brought a lease
	closing bool     // the end has begun

	// Guarded by mu.
	step     int // of the driver
	requests []*request
	fence    uint64
	last     *request  // the last that was granted the lock
	idle     time.Time // when the last belief ended
}

// request is a call of Lock or TryLock, and what became of it.
type request struct {
	w      *fairWorld
	n      int
	p      *process
	try    bool
	fixed  bool          // not renewed
	hold   time.Duration // how long the lock is kept
	within time.Duration // what Release may take; 0: its context has ended before
	ctx    context.Context
	cancel context.CancelFunc
	let    chan struct{} // closed when the holder is told to release

	// Guarded by world.mu.
	began     time.Time
	step      int
	told      bool      // to release
	quits     bool      // its context is to end as soon as its process runs
	cancelled time.Time // when it did
	token     string    // once it was seen in the queue
	ticket    float64   // its place there
	stands    bool      // it is there now
	well      time.Time // since when it is well off; zero: it is not
	wellStep  int
	missing   bool  // it was seen out of the queue, waiting
	passed    state // in which it was passed over
	unheard   bool  // it was seen holding the lock, waiting
	returned  bool
	lease     *lockkeeper.Lease
	until     time.Time // of a crashed one: its deadline
	ended     time.Time // when it no longer believed to hold the lock
}

// TestFairServesLiveWaitersInOrder: for any interleaving of arrivals, cancellations, crashes, freezes, cut connections,
// lost answers and lost messages, the promises above hold.
func TestFairServesLiveWaitersInOrder(t *testing.T) {
	run := newRun(t)
	rapid.Check(t, func(r *rapid.T) {
		run.simulate(r, func(w *world) {
			f := &fairWorld{world: w, idle: w.start}
			defer f.stop()
			f.ttl = rapid.SampledFrom([]time.Duration{3 * time.Second, 10 * time.Second}).Draw(r, "ttl")
			for range rapid.IntRange(2, 4).Draw(r, "processes") {
				f.join()
			}
			r.Repeat(f.actions(r))
			f.finish(r)
		})
	})
	run.report(
		"granted at once", "granted by a message", "granted by an answer to a heartbeat", "handed to another process",
		"several come at once", "one barges in", "a wait is cancelled", "a cancellation meets the grant", "a grant is given back unheard",
		"a try is granted", "a try is refused", "a lease is lost",
		"a holder is replaced that is crashed", "a holder is replaced that is frozen", "a holder is replaced that is away",
		"a waiter is passed over that is crashed", "a waiter is passed over that is frozen", "a waiter is passed over that is away",
		"a frozen waiter is granted the lock", "a waiter comes back to its place", "a waiter comes back at the end",
		"a message is lost and a heartbeat finds the grant", "a process is lossy", "nothing is broken and nothing left",
	)
}

// actions is what may happen in a schedule. Each has its own choice of what is broken in it.
func (w *fairWorld) actions(r *rapid.T) map[string]func(*rapid.T) {
	actions := map[string]func(*rapid.T){
		"":                       func(*rapid.T) { w.look() },
		"time passes":            w.timePasses,
		"more time passes":       w.timePasses,
		"still more time passes": w.timePasses,
		"one comes":              w.comes,
		"another comes":          w.comes,
		"several come":           w.severalCome,
		"one tries":              w.tries,
		"one barges in":          w.barges,
		"one releases":           w.releases,
		"one gives up":           w.givesUp,
		"one gives up its grant": w.givesUpGrant,
	}
	w.calm = true
	if rapid.IntRange(0, 7).Draw(r, "faults") == 0 {
		return actions
	}
	for _, fault := range []struct {
		name   string
		action func(*rapid.T)
	}{
		{"a process crashes", w.crashes},
		{"the holder crashes", w.holderCrashes},
		{"a process freezes", w.hurts(frozen, 20*time.Second)},
		{"the first waiter freezes", w.headFreezes},
		{"a process is cut off", w.hurts(away, 15*time.Second)},
		{"a process is muted", w.hurts(muted, 3*time.Second)},
		{"answers are lost", w.losesAnswers},
		{"a message is lost", w.losesMessage},
		{"a grant is never heard of", w.neverHeard},
	} {
		if rapid.Bool().Draw(r, fault.name) {
			actions[fault.name] = fault.action
			w.calm = false
		}
	}
	return actions
}

func (w *fairWorld) timePasses(r *rapid.T) {
	w.advance(duration(r, 20*time.Second), w.look)
}

func (w *fairWorld) join() {
	w.process(lockkeeper.Hooks{WakeupHeard: func(e lockkeeper.Event) { w.pushed.Store(e.Token, true) }})
}

// draw is one of a list, if there is one.
func draw[T any](r *rapid.T, list []T, what string) T {
	if len(list) == 0 {
		r.Skip("none")
	}
	return list[rapid.IntRange(0, len(list)-1).Draw(r, what)]
}

// newRequest draws a request of the process.
func (w *fairWorld) newRequest(r *rapid.T, p *process, try bool) *request {
	q := &request{w: w, p: p, try: try, began: time.Now(), let: make(chan struct{})}
	q.fixed = rapid.IntRange(0, 4).Draw(r, "fixed") == 4
	hold := rapid.SampledFrom([]int{0, 100, 1000, 5000, 20000, 60000}).Draw(r, "hold ms")
	q.within = time.Duration(rapid.SampledFrom([]int{1000, 0}).Draw(r, "release ms")) * time.Millisecond
	patience := rapid.SampledFrom([]int{0, 10000, 1000}).Draw(r, "patience ms")
	q.ctx, q.cancel = context.WithCancel(context.Background())
	w.mu.Lock()
	q.n, q.step = len(w.requests), w.step
	// No two requests do something at the same instant.
	q.hold = time.Duration(hold)*time.Millisecond + time.Duration(53+137*q.n)*time.Microsecond
	w.requests = append(w.requests, q)
	w.logLocked("process %d: request %d, try %v, fixed %v, hold %v", p.id, q.n, q.try, q.fixed, q.hold)
	w.mu.Unlock()
	if patience > 0 && !try {
		w.after(time.Duration(patience)*time.Millisecond+211*time.Microsecond, q.quit)
	}
	return q
}

// able is the processes whose program goes on.
func (w *fairWorld) able() []*process { return w.in(running, lossy, muted, away) }

func (w *fairWorld) comes(r *rapid.T) {
	w.tooMany(r)
	w.begin(w.newRequest(r, draw(r, w.able(), "process"), false))
}

func (w *fairWorld) severalCome(r *rapid.T) {
	w.tooMany(r)
	var list []*request
	for range rapid.IntRange(2, 4).Draw(r, "how many") {
		list = append(list, w.newRequest(r, draw(r, w.able(), "process"), false))
	}
	w.reach("several come at once")
	for _, q := range list {
		w.begin(q)
	}
}

// tooMany keeps the numbers of requests below a second.
func (w *fairWorld) tooMany(r *rapid.T) {
	if len(w.requests) > 900 {
		r.Skip("too many")
	}
}

func (w *fairWorld) begin(q *request) {
	w.actors.Go(q.run)
}

func (w *fairWorld) tries(r *rapid.T) {
	w.tooMany(r)
	w.try(r, draw(r, w.able(), "process"))
}

// barges tries at the very moment at which the present lease ends, when those who wait have not asked again yet.
func (w *fairWorld) barges(r *rapid.T) {
	w.tooMany(r)
	if len(w.waiters()) == 0 || !w.mini.Exists(lockKey) {
		r.Skip("there is nobody to pass")
	}
	p := draw(r, w.in(running), "process")
	w.advance(w.mini.TTL(lockKey), w.look)
	if !w.mini.Exists(lockKey) && w.mini.Exists(queueKey) {
		w.reach("one barges in")
	}
	w.try(r, p)
}

func (w *fairWorld) try(r *rapid.T, p *process) {
	q := w.newRequest(r, p, true)
	held, waited := w.mini.Exists(lockKey), w.mini.Exists(queueKey)
	w.begin(q)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !q.returned: // connections that it did not use while they broke cost it an attempt
		if q.p.neverHurt() {
			w.breaks(truth, "try %d has not returned", q.n)
		}
	case held && q.lease != nil:
		w.breaks(truth, "try %d was granted a lock that is held", q.n)
	case !held && !waited && q.lease == nil && q.p.isSteady():
		w.breaks(truth, "try %d was refused a lock that is free", q.n)
	}
}

// holders is those who believe to hold the lock and whose process runs.
func (w *fairWorld) holders() []*request {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*request
	for _, q := range w.requests {
		if q.believes() && !q.told && q.p.state != frozen && q.p.state != crashed {
			list = append(list, q)
		}
	}
	return list
}

// waiters is those who wait and whose process runs.
func (w *fairWorld) waiters() []*request {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*request
	for _, q := range w.requests {
		if !q.returned && q.cancelled.IsZero() && !q.quits && q.p.state != frozen && q.p.state != crashed {
			list = append(list, q)
		}
	}
	return list
}

// head is the first of the queue whose process is well.
func (w *fairWorld) head(r *rapid.T) *request {
	var first *request
	for _, q := range w.waiters() {
		if !q.well.IsZero() && q.stands && (first == nil || q.ticket < first.ticket) {
			first = q
		}
	}
	if first == nil {
		r.Skip("nobody waits")
	}
	return first
}

func (w *fairWorld) releases(r *rapid.T) { w.tell(draw(r, w.holders(), "holder")) }

// tell makes a holder release.
func (w *fairWorld) tell(q *request) {
	w.mu.Lock()
	w.logLocked("request %d is told to release", q.n)
	q.told = true
	w.mu.Unlock()
	close(q.let)
}

func (w *fairWorld) givesUp(r *rapid.T) { draw(r, w.waiters(), "waiter").quit() }

// givesUpGrant ends a wait at the moment of the grant.
func (w *fairWorld) givesUpGrant(r *rapid.T) {
	head, holder := w.head(r), draw(r, w.holders(), "holder")
	w.reach("a cancellation meets the grant")
	if rapid.Bool().Draw(r, "release first") {
		w.tell(holder)
		head.quit()
	} else {
		head.quit()
		w.tell(holder)
	}
}

func (w *fairWorld) crashes(r *rapid.T) {
	w.crash(draw(r, w.in(running, lossy, muted, away, frozen), "process"))
}

func (w *fairWorld) holderCrashes(r *rapid.T) { w.crash(draw(r, w.holders(), "holder").p) }

// crash ends a process; another takes its place.
func (w *fairWorld) crash(p *process) {
	w.mu.Lock()
	w.unwell(p)
	for _, q := range w.requests {
		if q.p == p && q.believes() {
			q.until = q.lease.Deadline()
			w.after(time.Until(q.until), func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.ends(q, q.until)
			})
		}
	}
	w.mu.Unlock()
	p.crash()
	w.join()
}

// hurts brings a process into another state for a while.
func (w *fairWorld) hurts(s state, longest time.Duration) func(*rapid.T) {
	return func(r *rapid.T) { w.hurt(draw(r, w.in(running), "process"), s, duration(r, longest)) }
}

// duration is a time of some order of magnitude, up to a longest.
func duration(r *rapid.T, longest time.Duration) time.Duration {
	d := longest / time.Duration(rapid.SampledFrom([]int{100, 30, 10, 3, 1}).Draw(r, "fraction"))
	return d - time.Duration(rapid.IntRange(0, int(d/2/time.Millisecond)).Draw(r, "less ms"))*time.Millisecond
}

func (w *fairWorld) hurt(p *process, s state, d time.Duration) {
	w.mu.Lock()
	// Lost requests alone are made good in time; but with a message lost shortly before, a short lease can be over by
	// then that a waiter was granted and has not heard of.
	if s != lossy || time.Since(p.deafened) < life {
		w.unwell(p)
	}
	w.mu.Unlock()
	p.harm(s, d)
}

// unwell says that the waiters of the process are not well off.
func (w *fairWorld) unwell(p *process) {
	for _, q := range w.requests {
		if q.p == p {
			q.well = time.Time{}
		}
	}
}

// headFreezes freezes the first waiter and lets the holder release, so that it is granted a lock that it cannot use.
func (w *fairWorld) headFreezes(r *rapid.T) {
	head := w.head(r)
	if head.p.state != running {
		r.Skip("it does not run")
	}
	holder := draw(r, w.holders(), "holder")
	w.hurt(head.p, frozen, duration(r, 20*time.Second))
	if holder.p != head.p {
		w.tell(holder)
	}
}

// fates is what becomes of requests.
var fates = []faultnet.Fate{faultnet.LoseRequest, faultnet.CutReply, faultnet.SwallowReply}

// losesAnswers loses up to three requests or answers.
func (w *fairWorld) losesAnswers(r *rapid.T) {
	p := draw(r, w.in(running), "process")
	fate := rapid.SampledFrom(fates).Draw(r, "fate")
	p.link.Break("evalsha", rapid.IntRange(1, 3).Draw(r, "how many"), fate)
	w.hurt(p, lossy, duration(r, 3*time.Second))
}

// losesMessage lets the holder release while the first waiter does not hear: it is deaf and nobody knows, or its
// subscription or all of its connections are cut and not made again for a while.
func (w *fairWorld) losesMessage(r *rapid.T) {
	head := w.head(r)
	if head.p.state != running {
		r.Skip("it does not run")
	}
	holder := draw(r, w.holders(), "holder")
	if how := rapid.SampledFrom([]state{"deaf", muted, away}).Draw(r, "how"); how == "deaf" {
		w.deafen(head.p)
	} else {
		w.hurt(head.p, how, duration(r, 3*time.Second))
	}
	synctest.Wait()
	w.tell(holder)
}

// deafen lets nothing through on the subscription of a process. Nothing is lost by that but messages, so its waiters
// are still well off.
func (w *fairWorld) deafen(p *process) {
	w.mu.Lock()
	if p.isSteady() {
		p.hurt = time.Now()
	}
	if p.deafened = time.Now(); p.state == lossy {
		w.unwell(p)
	}
	w.logLocked("process %d is deaf", p.id)
	w.mu.Unlock()
	p.link.DeafenSubscriptions()
}

// neverHeard ends a wait whose grant the waiter has not heard of.
func (w *fairWorld) neverHeard(r *rapid.T) {
	head, holder := w.head(r), draw(r, w.holders(), "holder")
	w.deafen(head.p)
	w.tell(holder)
	synctest.Wait()
	owner, _ := w.mini.Get(lockKey)
	w.mu.Lock()
	unheard := owner == head.token && !head.returned
	w.mu.Unlock()
	head.quit()
	if unheard {
		w.reach("a grant is given back unheard")
	}
}

// quit ends the context of a request, when its process runs.
func (q *request) quit() {
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
	w.logLocked("request %d is cancelled", q.n)
	w.mu.Unlock()
	q.cancel()
	w.after(grace, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !q.returned && q.p.state != frozen && q.p.state != crashed {
			w.breaks(bounded, "request %d", q.n)
		}
	})
}

// run is what the program that uses the lock does.
func (q *request) run() {
	w := q.w
	defer q.cancel()
	lock, err := fair.New(q.p.Keeper, "x", &fair.Options{TTL: w.ttl + time.Duration(q.n)*time.Millisecond, NoRenewal: q.fixed})
	if err != nil {
		panic(err)
	}
	get := lock.Lock
	if q.try {
		get = lock.TryLock
	}
	lease, err := get(q.ctx)
	if !q.p.awake() {
		return
	}
	if lease == nil {
		w.isRefused(q, err)
		return
	}
	w.isGranted(q, lease)
	w.actors.Go(func() {
		<-lease.Done()
		w.isOver(q)
	})
	hold := time.NewTimer(q.hold)
	defer hold.Stop()
	select {
	case <-hold.C:
	case <-q.let:
	case <-lease.Done():
	}
	if !q.p.awake() {
		return
	}
	w.mu.Lock()
	w.ends(q, time.Now())
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), q.within)
	defer cancel()
	began := time.Now()
	err = lease.Release(ctx)
	w.isReleased(q, time.Since(began), err)
}

// believes says whether a request believes to hold the lock.
func (q *request) believes() bool {
	switch {
	case q.lease == nil || !q.ended.IsZero():
		return false
	case q.p.state == crashed:
		return time.Now().Before(q.until)
	}
	return q.lease.Err() == nil
}

// ends notes when a request ceased to believe.
func (w *fairWorld) ends(q *request, at time.Time) {
	if q.ended.IsZero() {
		q.ended = at
		w.idle = at
		w.logLocked("request %d believes no more", q.n)
	}
}

// isRefused looks at a call that brought no lease.
func (w *fairWorld) isRefused(q *request, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q.returned = true
	w.logLocked("request %d: %v", q.n, err)
	want := q.ctx.Err()
	switch {
	case w.closing && errors.Is(err, lockkeeper.ErrClosed):
		return
	case q.try && errors.Is(err, lockkeeper.ErrNotAcquired):
		w.tally["a try is refused"]++
		return
	case q.try && q.p.neverHurt(), !q.try && (want == nil || !errors.Is(err, want)):
		w.breaks(truth, "request %d: %v", q.n, err)
	case !q.try && q.p.neverHurt() && !errors.Is(err, lockkeeper.ErrNotAcquired):
		w.breaks(truth, "request %d: %v", q.n, err)
	}
	for _, not := range []error{lockkeeper.ErrLost, lockkeeper.ErrReleased, lockkeeper.ErrInvalid, lockkeeper.ErrClosed} {
		if errors.Is(err, not) {
			w.breaks(truth, "request %d: %v", q.n, err)
		}
	}
	if q.stands {
		w.tally["a wait is cancelled"]++
	}
}

// isGranted looks at a call that brought a lease.
func (w *fairWorld) isGranted(q *request, lease *lockkeeper.Lease) {
	owner, _ := w.mini.Get(lockKey)
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	late := now.After(w.limit())
	q.returned, q.lease = true, lease
	w.logLocked("request %d is granted the lock, fence %d", q.n, lease.Fence())
	if lease.Err() != nil { // over before its process woke up
		q.ended = now
		return
	}
	if q.p.state == running && owner != lease.Token() {
		w.breaks(truth, "request %d has the lease %s, and the server says %q", q.n, lease.Token(), owner)
	}
	if lease.Fence() <= w.fence {
		w.breaks(fences, "request %d: %d after %d", q.n, lease.Fence(), w.fence)
	}
	w.fence = lease.Fence()
	at := time.UnixMicro(int64(lease.Fence())) // when it was granted, if that was not just now
	if now.Sub(at) < time.Millisecond {
		at = time.Time{}
	}
	if late {
		w.breaks(progress, "request %d comes late", q.n)
	}
	for _, o := range w.requests {
		switch {
		case o == q:
		case o.believes():
			w.breaks(exclusion, "requests %d and %d", o.n, q.n)
		case !o.returned && o.cancelled.IsZero() && q.after(o):
			if !o.well.IsZero() && (at.IsZero() || o.well.Before(at)) {
				w.breaks(order, "request %d is granted the lock before request %d", q.n, o.n)
			}
			if s := o.p.state; o.passed != s && (s == away || s == frozen || s == crashed) {
				o.passed = s
				w.tally["a waiter is passed over that is "+string(s)]++
			}
		}
	}
	w.countGrant(q)
	w.last = q
}

// after says whether o was in the queue before q.
func (q *request) after(o *request) bool {
	if q.ticket > 0 {
		return o.ticket > 0 && o.ticket < q.ticket
	}
	return o.ticket > 0 && o.wellStep > 0 && o.wellStep <= q.step
}

// countGrant says how a grant came about.
func (w *fairWorld) countGrant(q *request) {
	_, pushed := w.pushed.Load(q.lease.Token())
	switch {
	case q.try:
		w.tally["a try is granted"]++
	case q.ticket == 0:
		w.tally["granted at once"]++
	case q.unheard:
		w.tally["a message is lost and a heartbeat finds the grant"]++
	case pushed:
		w.tally["granted by a message"]++
	default:
		w.tally["granted by an answer to a heartbeat"]++
	}
	if w.last == nil || w.last.p == q.p {
		return
	}
	w.tally["handed to another process"]++
	if !w.last.until.IsZero() {
		w.tally["a holder is replaced that is crashed"]++
	} else if s := w.last.p.state; s == frozen || s == away {
		w.tally["a holder is replaced that is "+string(s)]++
	}
}

// isOver looks at a lease that is held no more.
func (w *fairWorld) isOver(q *request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if q.p.state == crashed || !q.ended.IsZero() {
		return
	}
	w.ends(q, time.Now())
	if w.closing {
		return
	}
	w.tally["a lease is lost"]++
	if q.p.neverHurt() && !q.fixed {
		w.breaks(kept, "request %d: %v", q.n, q.lease.Err())
	}
}

// isReleased looks at what a release has returned.
func (w *fairWorld) isReleased(q *request, took time.Duration, err error) {
	owner, _ := w.mini.Get(lockKey)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logLocked("request %d is released: %v", q.n, err)
	limit := q.within
	if limit == 0 {
		limit = time.Second // see Lease.Release
	}
	if took > limit+grace && q.p.state != frozen {
		w.breaks(bounded, "the release of request %d took %v", q.n, took)
	}
	switch {
	case w.closing, q.p.state != running:
	case err == nil && owner == q.lease.Token():
		w.breaks(truth, "request %d still has the lock", q.n)
	case err != nil && q.p.neverHurt() && !(q.fixed && errors.Is(err, lockkeeper.ErrLost)):
		w.breaks(truth, "the release of request %d: %v", q.n, err)
	}
}

// limit is when somebody must have been granted the lock; a time that never comes if there is nobody to whom that was
// promised.
func (w *fairWorld) limit() time.Time {
	var since time.Time
	for _, q := range w.requests {
		if q.lease != nil && q.ended.IsZero() {
			return time.Now() // it believes, or did until just now
		}
		if q.returned || !q.cancelled.IsZero() || q.well.IsZero() || !q.p.isSteady() {
			continue
		}
		from := q.well
		if q.p.steady.After(from) {
			from = q.p.steady
		}
		if since.IsZero() || from.Before(since) {
			since = from
		}
	}
	if since.IsZero() {
		return time.Now()
	}
	for _, t := range []time.Time{w.idle, w.serious.Add(max(w.ttl+time.Second, life))} {
		if t.After(since) {
			since = t
		}
	}
	return since.Add(period + slack)
}

// tokens have the ttl of their request in them, which names it.
var tokens = regexp.MustCompile(`^[^:]+:[^:]+:(\d+)\.`)

// look reads the queue, when everything stands still, and compares it with what should be.
func (w *fairWorld) look() {
	synctest.Wait()
	members, _ := w.mini.ZMembers(queueKey)
	scores := make([]float64, len(members))
	for i, m := range members {
		scores[i], _ = w.mini.ZScore(queueKey, m)
	}
	owner, _ := w.mini.Get(lockKey)

	var quit []*request
	w.mu.Lock()
	w.step++
	now := time.Now()
	in := map[int]int{}
	for i, m := range members {
		in[w.number(m)] = i
	}
	for _, q := range w.requests {
		i, found := in[q.n]
		if found && !q.returned {
			q.token = members[i]
			if q.ticket == 0 {
				q.ticket = scores[i]
				w.hasTicket(q)
			}
		}
		q.stands = found
		if q.returned || q.p.state == crashed {
			continue
		}
		if q.quits && q.p.state != frozen {
			quit = append(quit, q)
			continue
		}
		holds := !found && owner != "" && w.number(owner) == q.n
		if holds && q.p.state == frozen && !q.unheard {
			q.unheard = true
			w.tally["a frozen waiter is granted the lock"]++
		}
		q.unheard = q.unheard || holds && q.p.state == running
		q.missing = q.missing || q.ticket > 0 && !found && !holds
		switch {
		case !q.p.isSteady() || !q.cancelled.IsZero():
		case found && q.well.IsZero():
			w.isBack(q, scores[i])
		case found && scores[i] != q.ticket:
			w.breaks(place, "request %d was moved from %.0f to %.0f", q.n, q.ticket, scores[i])
		case !found && !holds && !q.well.IsZero():
			w.breaks(place, "request %d does not stand in the queue", q.n)
		case !found && !holds && now.Sub(q.began) > settling && now.Sub(q.p.steady) > settling:
			w.breaks(place, "request %d never came to the queue", q.n)
		}
	}
	if now.After(w.limit()) {
		w.breaks(progress, "nobody")
	}
	w.mu.Unlock()
	for _, q := range quit {
		q.quits = false
		q.quit()
	}
	if len(quit) > 0 {
		synctest.Wait()
	}
	w.fail()
}

// hasTicket looks at a newcomer's place.
func (w *fairWorld) hasTicket(q *request) {
	for _, o := range w.requests {
		if !o.well.IsZero() && o.stands && !o.returned && o.wellStep <= q.step && o.ticket >= q.ticket {
			w.breaks(order, "request %d has ticket %.0f, and request %d %.0f", q.n, q.ticket, o.n, o.ticket)
		}
	}
}

// isBack looks at a waiter that is well off now, perhaps again.
func (w *fairWorld) isBack(q *request, at float64) {
	p := q.p
	// A heartbeat left at most a period before the process was hurt, and another at most as much after it came back as
	// is waited for a connection.
	short := p.hurt.IsZero() || p.back.Sub(p.hurt) < life-settling
	switch {
	case at == q.ticket:
		if q.missing {
			w.tally["a waiter comes back to its place"]++
		}
	case short && q.wellStep > 0: // else its answer was lost, so it did not know that it waits
		w.breaks(comeback, "request %d has come from %.0f to %.0f", q.n, q.ticket, at)
	default:
		w.tally["a waiter comes back at the end"]++
	}
	q.missing = false
	q.ticket, q.well, q.wellStep = at, time.Now(), w.step
}

// number is that of the request that a token belongs to.
func (w *fairWorld) number(token string) int {
	m := tokens.FindStringSubmatch(token)
	if m == nil {
		return -1
	}
	ms, _ := strconv.Atoi(m[1])
	return ms - int(w.ttl/time.Millisecond)
}

// finish lets everybody go home, by releasing and giving up or by closing the keepers, and looks at what they leave.
func (w *fairWorld) finish(r *rapid.T) {
	w.look()
	for _, p := range w.in(lossy, muted, away, frozen) {
		p.recover(p.state)
	}
	if !w.calm { // for hurt processes to come to themselves
		w.advance(settling, w.look)
	}
	if rapid.Bool().Draw(r, "one by one") {
		for _, q := range w.waiters() {
			q.quit()
		}
		for _, q := range w.holders() {
			w.tell(q)
		}
		w.advance(grace, w.look)
		w.checkLeft(w.calm, w.keys())
	}
	w.stop()
	w.checkLeft(w.calm, w.keys())
	if w.calm {
		w.reach("nothing is broken and nothing left")
	}
	time.Sleep(max(w.ttl, life) + time.Second + slack)
	w.checkLeft(w.mini.Exists(lockKey) || w.mini.Exists(queueKey), w.keys())
	time.Sleep(grave)
	w.checkLeft(true, w.keys())
	time.Sleep(idle)
	w.checkLeft(true, w.mini.Keys())
}

func (w *fairWorld) checkLeft(counts bool, left []string) {
	if counts && len(left) > 0 {
		w.mu.Lock()
		w.breaks(nothing, "%v", left)
		w.mu.Unlock()
	}
	w.fail()
}

// stop ends all programs.
func (w *fairWorld) stop() {
	w.mu.Lock()
	again := w.closing
	w.closing = true
	w.mu.Unlock()
	if !again {
		w.leave()
		w.actors.Wait()
	}
}
