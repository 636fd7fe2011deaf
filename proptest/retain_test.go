package proptest

import (
	"context"
	"errors"
	"math"
	"math/rand"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"pgregory.net/rapid"
)

// The promises about reads that are granted inside a process, by a lease that it retains; see rwlock.Options.Retain. They hold
// whatever happens to messages, processes, network and server, but for leases that the server has lost with its data, or that
// have expired because its clock was set forward: fences exist for them. Beside these, exclusion, belief, kept and nothing are as in the
// simulation: a reader considers its lease held from the return of RLock to the call of Release, unless Err says otherwise.
const (
	// A read lease ends by its own release, or is lost. In particular no retained lease is given back with a reader inside.
	retainedEnds = "no lease is given back before its readers have left"
	// Nothing is granted inside a process that has subscribed anew, until the server has been asked for its lease again: a recall may have
	// been lost before.
	retainedHears = "nothing is granted inside while a recall may have been lost"
	// Without faults a writer waits for no longer than readers inside, and writers before it, hold the lock. With faults, all
	// are served when those have ended, although others read all the time.
	retainedProgress = "a writer is not kept waiting by retained leases"
	// Of a mutex the same: without faults nobody waits for longer than the turns of all others take, in whichever process; with faults, each
	// process gets the mutex when those have ended, although another one takes it again and again.
	retainedTurns = "a process is not kept waiting by turns inside another"
	// Of a semaphore the same, and: the permits that callers consider held are never more than the limit, and no lease belongs to two of them.
	retainedPermits = "permits are never held beyond the limit, nor by two callers"
)

const (
	retainReads  = 200 * time.Millisecond // the longest a reader is inside
	retainWrites = 100 * time.Millisecond // the longest a writer holds
	retainTurns  = 20 * time.Millisecond  // the longest that a mutex is held
	// Without faults nobody waits longer for a mutex: so long as each of three processes has a turn for both of its callers.
	retainTurnWait = 400 * time.Millisecond
	retainLimit    = 2 // permits of a semaphore
)

// retainWorld is a world whose processes use one lock with leases that they retain, and what their callers consider held.
type retainWorld struct {
	*world
	set       *lua.Set // of the lock: a rwlock, a mutex or a semaphore
	keys      protocol.Keys
	faultless bool
	locks     []retainLock // by process
	snapshot  []record

	// Guarded by world.mu.
	held     map[*held]bool
	void     map[string]bool // tokens whose leases the server has lost
	crowded  bool            // other writers have come beside those of the schedule
	waiting  []*wait
	steps    int                               // of the server: scripts and subscriptions
	asked    map[string]int                    // the last script of a retained lease, by token
	listens  map[string]map[*server.Peer]hears // by channel: the connections that are subscribed
	cut      *process                          // whose subscription ends with its next renewal
	restored *process                          // whose next subscription is after that
}

// hears is when the server was asked for a subscription.
type hears struct {
	step int
	at   time.Time
}

// wait is the context of a caller who waits for a lease. It can be made to end at the moment of the grant: what grants the lease is done
// when the caller has learned of the end, and has not acted on that.
type wait struct {
	context.Context
	cancel context.CancelFunc
	chance int64 // drawn by the caller, so that a schedule can be repeated

	mu    sync.Mutex
	grant func() // to be called by Err when the context has ended; nil: not
}

func (c *wait) Err() error {
	err := c.Context.Err()
	if err == nil {
		return nil
	}
	c.mu.Lock()
	grant := c.grant
	c.grant = nil
	c.mu.Unlock()
	if grant != nil {
		grant()
	}
	return err
}

// acquire calls a function that waits for a lease, with a context that another caller's release may end.
func (w *retainWorld) acquire(random *rand.Rand, timeout time.Duration, get func(context.Context) (*lockkeeper.Lease, error)) (*lockkeeper.Lease, error) {
	c := &wait{chance: random.Int63()}
	c.Context, c.cancel = context.WithTimeout(context.Background(), timeout)
	defer c.cancel()
	w.mu.Lock()
	w.waiting = append(w.waiting, c)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.remove(c)
	}()
	return get(c)
}

// remove removes a caller from those who wait, if it is one. The caller holds the mutex.
func (w *retainWorld) remove(c *wait) {
	w.waiting = slices.DeleteFunc(w.waiting, func(other *wait) bool { return other == c })
}

// held is a lease that its holder considers held.
type held struct {
	p          int
	lease      *lockkeeper.Lease
	write      bool
	permits    int  // of a semaphore
	converting bool // or the outcome of a conversion is not known
}

// retainLock is the lock of one process: the one that the world is about.
type retainLock struct {
	*rwlock.Lock
	turns   *mutex.Mutex
	permits *semaphore.Semaphore
}

// leases returns the leases at the server. The caller holds the server's mutex, and has updated its clock.
func (w *retainWorld) leases() map[string]lease {
	v := &view{now: w.server.nowLocked().UnixMicro(), leases: map[string]lease{}}
	if w.set == lua.Mutex {
		v.seq, _ = strconv.ParseUint(strings.TrimPrefix(w.server.mini.HGet(w.keys.Meta, "seq"), "-"), 10, 64)
		leasesInString(w.server.mini, w.keys, v)
	} else {
		leasesInSet(w.server.mini, w.keys, v)
	}
	for token, l := range v.leases {
		if l.ends <= w.server.nowLocked().UnixMicro() {
			delete(v.leases, token)
		}
	}
	return v.leases
}

// stepped checks the promises after each script.
func (w *retainWorld) stepped(call script) {
	leases := w.leases()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps++
	for _, arg := range call.argv {
		t, is := protocol.ParseToken(arg)
		if !is || !strings.HasSuffix(t.Flags, protocol.FlagRetained) {
			continue
		}
		w.asked[arg] = w.steps
		if w.cut != nil && t.Keeper == w.cut.ID() && (call.text == w.set.Renew.Text || call.text == w.set.Fast.Renew.Text) {
			w.cutDuringRenewal(w.cut)
			w.cut = nil
		}
	}
	w.check(leases)
}

// subscribed notes that a process subscribes. go-redis does so as well on a connection in place of one that broke, which the keeper then
// closes: that request can arrive after the one on the connection that the keeper uses.
func (w *retainWorld) subscribed(peer *server.Peer, channel string) {
	peer.OnDisconnect(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.listens[channel], peer)
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps++
	if w.listens[channel] == nil {
		w.listens[channel] = map[*server.Peer]hears{}
	}
	w.listens[channel][peer] = hears{w.steps, time.Now()}
	if p := w.restored; p != nil && channel == "lock:wake:"+p.ID() {
		w.restored = nil
		p.link.Slow(renewalWay, 0) // the next renewal
		w.tally["a subscription is lost and restored during a renewal"]++
	}
}

// renewalWay is how long the reply to a renewal is under way at most while a subscription is lost and restored.
const renewalWay = 300 * time.Millisecond

// cutDuringRenewal ends the subscription of a process while the reply to a renewal, which the server has just run, is under way. The
// process subscribes again at once. Its next renewal, which would tell of a recall that was lost, takes its time.
func (w *retainWorld) cutDuringRenewal(p *process) {
	time.AfterFunc(time.Microsecond, func() {
		p.link.Slow(0, 0)
		w.mu.Lock()
		w.restored = p
		w.mu.Unlock()
		p.link.CutSubscriptions()
	})
}

// inside checks a grant inside a process.
func (w *retainWorld) inside(keeper string, token string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tally["a grant inside"]++
	first := hears{step: math.MaxInt}
	for _, s := range w.listens["lock:wake:"+keeper] {
		if s.step < first.step {
			first = s
		}
	}
	if first.step < math.MaxInt && w.asked[token] < first.step && time.Since(first.at) > 0 {
		w.breaksLocked(retainedHears, "%s: the first subscription that lasts is step %d, at %v, and the last script of the lease step %d", token, first.step, first.at.Sub(w.start), w.asked[token])
	}
}

// check checks what callers consider held. leases is nil if the server is not looked at. The caller holds the mutex.
func (w *retainWorld) check(leases map[string]lease) {
	var readers, writers []string
	for h := range w.held {
		token := h.lease.Token()
		if w.void[token] {
			continue
		}
		switch err := h.lease.Err(); {
		case err == nil:
		case errors.Is(err, lockkeeper.ErrReleased) && !w.closing && !h.converting:
			w.breaksLocked(retainedEnds, "%s of process %d: %v", token, h.p, err)
			continue
		default:
			if w.faultless && !w.closing && !h.converting {
				w.breaksLocked(kept, "%s of process %d: %v", token, h.p, err)
			}
			continue
		}
		if h.write {
			writers = append(writers, token)
		} else {
			readers = append(readers, token)
		}
		if leases == nil || h.converting {
			continue
		}
		if l, is := leases[token]; !is {
			w.breaksLocked(belief, "%s of process %d", token, h.p)
		} else if l.fence != h.lease.Fence() {
			w.breaksLocked(belief, "%s has fence %d, and %d at the server", token, h.lease.Fence(), l.fence)
		}
	}
	if w.set == lua.Semaphore {
		w.checkPermits()
	} else if len(writers) > 1 || len(writers) > 0 && len(readers) > 0 {
		w.breaksLocked(exclusion, "readers %v, writers %v", readers, writers)
	}
}

// checkPermits checks what callers hold of a semaphore. The caller holds the mutex.
func (w *retainWorld) checkPermits() {
	n, tokens := 0, map[string]bool{}
	for h := range w.held {
		token := h.lease.Token()
		if w.void[token] || h.lease.Err() != nil {
			continue
		}
		if n += h.permits; n > retainLimit || tokens[token] {
			w.breaksLocked(retainedPermits, "%d of %d permits, also of %s: %v", h.permits, retainLimit, token, tokens)
		}
		tokens[token] = true
	}
}

// begins records that the caller considers a lease held, in place of another.
func (w *retainWorld) begins(h, instead *held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if instead != nil {
		delete(w.held, instead)
	}
	w.held[h] = true
	w.check(nil)
}

// release releases a lease. Sometimes the context of a caller who waits ends as that is granted the lease.
func (w *retainWorld) release(h *held) {
	w.mu.Lock()
	w.check(nil)
	delete(w.held, h)
	var waits *wait
	for _, c := range w.waiting {
		if c.chance%8 == 0 && (waits == nil || c.chance < waits.chance) {
			waits = c
		}
	}
	w.remove(waits) // one grant for each
	w.mu.Unlock()
	release := func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = h.lease.Release(ctx)
	}
	if waits == nil {
		release()
		return
	}
	released := make(chan struct{})
	waits.mu.Lock()
	waits.grant = func() {
		release()
		close(released)
	}
	waits.mu.Unlock()
	waits.cancel()
	time.Sleep(time.Nanosecond) // it learns of the end now, if it is still there
	waits.mu.Lock()
	missed := waits.grant != nil
	waits.grant = nil
	waits.mu.Unlock()
	if missed {
		release()
		return
	}
	<-released
	w.reach("a wait ends with its grant")
}

// reads is a program that reads again and again, and sometimes upgrades.
func (w *retainWorld) reads(p int, random *rand.Rand, pause time.Duration, upgrades bool) {
	lock := w.locks[p]
	for !w.isClosing() {
		time.Sleep(time.Millisecond + time.Duration(random.Int63n(int64(pause))))
		lease, err := w.acquire(random, 3*time.Second, lock.RLock)
		if err != nil {
			continue
		}
		h := &held{p: p, lease: lease}
		w.begins(h, nil)
		if t, _ := protocol.ParseToken(lease.Token()); strings.Contains(t.Flags, protocol.FlagRetained) {
			w.reach("a retained read")
		}
		time.Sleep(time.Duration(random.Int63n(int64(retainReads))) / time.Duration(1<<random.Intn(8)))
		if upgrades && random.Intn(4) == 0 {
			h = w.upgrade(h)
		}
		w.release(h)
	}
}

// upgrade upgrades a lease, and returns what is held then.
func (w *retainWorld) upgrade(from *held) *held {
	w.mu.Lock()
	from.converting = true
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	lease, err := w.locks[from.p].Upgrade(ctx, from.lease)
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		from.converting = !errors.Is(err, rwlock.ErrUpgradeConflict)
		return from
	}
	h := &held{p: from.p, lease: lease, write: true}
	w.begins(h, from)
	w.reach("an upgrade")
	return h
}

// writes is a program that writes now and then.
func (w *retainWorld) writes(p int, random *rand.Rand, pause time.Duration) {
	for !w.isClosing() {
		time.Sleep(time.Millisecond + time.Duration(random.Int63n(int64(pause))))
		began := time.Now()
		get := w.locks[p].Lock.Lock
		if random.Intn(4) == 0 {
			get = w.locks[p].TryLock
		}
		lease, err := w.acquire(random, 10*time.Second, get)
		if took := time.Since(began); w.faultless && took > retainReads+100*time.Millisecond {
			w.mu.Lock()
			if !w.crowded {
				w.breaksLocked(retainedProgress, "a writer of process %d waited for %v: %v", p, took, err)
			}
			w.mu.Unlock()
		}
		if err != nil {
			continue
		}
		w.reach("a write")
		h := &held{p: p, lease: lease, write: true}
		w.begins(h, nil)
		time.Sleep(time.Duration(random.Int63n(int64(retainWrites))))
		w.release(h)
	}
}

// turn returns what acquires a turn of a mutex, or permits of a semaphore and how many.
func (w *retainWorld) turn(p int, random *rand.Rand) (get func(context.Context) (*lockkeeper.Lease, error), permits int) {
	l := w.locks[p]
	try := random.Intn(8) == 0
	if w.set == lua.Mutex {
		if try {
			return l.turns.TryLock, 0
		}
		return l.turns.Lock, 0
	}
	permits = 1
	if random.Intn(6) == 0 {
		permits = retainLimit
	}
	some, _ := l.permits.LockerN(permits)
	if try {
		return some.TryLock, permits
	}
	return some.Lock, permits
}

// takes is a program that takes a mutex, or permits, again and again.
func (w *retainWorld) takes(p int, random *rand.Rand, pause time.Duration) {
	for !w.isClosing() {
		time.Sleep(time.Microsecond + time.Duration(random.Int63n(int64(pause))))
		began := time.Now()
		get, permits := w.turn(p, random)
		lease, err := w.acquire(random, 10*time.Second, get)
		if took := time.Since(began); w.faultless && took > retainTurnWait {
			w.mu.Lock()
			w.breaksLocked(retainedTurns, "process %d waited for %v: %v", p, took, err)
			w.mu.Unlock()
		}
		if err != nil {
			continue
		}
		h := &held{p: p, lease: lease, write: true, permits: permits}
		w.begins(h, nil)
		if t, _ := protocol.ParseToken(lease.Token()); strings.Contains(t.Flags, protocol.FlagRetained) {
			w.reach("a retained turn")
		}
		if !w.faultless && random.Intn(50) == 0 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_ = lease.Extend(ctx, 500*time.Millisecond+time.Duration(random.Int63n(int64(3*time.Second))))
			cancel()
		}
		time.Sleep(time.Duration(random.Int63n(int64(retainTurns))) / time.Duration(1<<random.Intn(8)))
		w.release(h)
	}
}

// lock acquires the lock of a process for writing, or its mutex, or all permits.
func (l retainLock) lock(ctx context.Context) (*lockkeeper.Lease, error) {
	switch {
	case l.turns != nil:
		return l.turns.Lock(ctx)
	case l.permits != nil:
		return l.permits.AcquireN(ctx, retainLimit)
	}
	return l.Lock.Lock(ctx)
}

// joins starts a process with a lock.
func (w *retainWorld) joins(ttl time.Duration) {
	k := w.startProcess(func(p *process) lockkeeper.Hooks {
		return lockkeeper.Hooks{
			AcquireDone: func(e lockkeeper.Event) {
				if e.Local {
					w.inside(p.ID(), e.Token)
				}
			},
			Recalled:   func(lockkeeper.Event) { w.reach("a recall") },
			Lost:       func(lockkeeper.Event) { w.reach("a lease is lost") },
			WakeupLost: func(lockkeeper.Event) { w.reach("a subscription is replaced") },
		}
	}).Keeper
	var l retainLock
	var err error
	switch w.set {
	case lua.Mutex:
		l.turns, err = mutex.New(k, name, &mutex.Options{TTL: ttl, Retain: true})
	case lua.Semaphore:
		l.permits, err = semaphore.New(k, name, retainLimit, &semaphore.Options{TTL: ttl, Retain: true})
	default:
		l.Lock, err = rwlock.New(k, name, &rwlock.Options{TTL: ttl, Retain: true})
	}
	if err != nil {
		panic(err)
	}
	w.locks = append(w.locks, l)
}

// lose records that the server loses the leases that it has. It calls fn before the server grants another one.
func (w *retainWorld) lose(fn func()) {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	w.server.tickLocked()
	leases := w.leases()
	fn()
	w.mu.Lock()
	defer w.mu.Unlock()
	for token := range leases {
		w.void[token] = true
	}
	for h := range w.held {
		w.void[h.lease.Token()] = true
	}
}

// fault injects a fault.
func (w *retainWorld) fault(r *rapid.T) {
	what, p, d := w.disturbance(r, 8*time.Second, append([]string{
		"recalls are lost", "subscription cut", "subscription lost during a renewal", "server restarts empty", "failover", "clock forward", "snapshot",
	}, faults...))
	switch what {
	case "recalls are lost":
		p.link.BlackholeSubscriptions()
	case "subscription cut":
		p.link.CutSubscriptions()
	case "subscription lost during a renewal":
		p.link.Slow(0, renewalWay)
		time.AfterFunc(d, func() { p.link.Slow(0, 0) })
		w.mu.Lock()
		w.cut, w.restored = p, nil
		w.mu.Unlock()
	case "server restarts empty", "failover":
		w.server.thaw()
		w.stopServer()
		w.lose(func() {})
		data := w.snapshot
		if what == "server restarts empty" {
			data = nil
		}
		w.server.start(data)
	case "clock forward":
		w.lose(func() { w.server.jumpLocked(d * 10) })
	case "snapshot":
		w.snapshot = w.server.data()
	default:
		if w.inject(r, what, p, d); what == "clock back" {
			w.snapshot = nil // a failover restores nothing from before
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.check(nil)
}

// schedules draws a schedule.
func (w *retainWorld) schedules(r *rapid.T) {
	w.faultless = rapid.IntRange(0, 3).Draw(r, "without faults") == 0
	ttl := rapid.SampledFrom([]time.Duration{10 * time.Second, 3 * time.Second, time.Second}).Draw(r, "ttl")
	w.lag = rapid.SampledFrom([]time.Duration{0, 2 * time.Millisecond}).Draw(r, "lag")
	processes := rapid.IntRange(2, 3).Draw(r, "processes")
	for range processes {
		w.joins(ttl)
	}
	upgrades := !w.faultless && rapid.Bool().Draw(r, "upgrades")
	writers := 1
	if !w.faultless {
		writers = rapid.IntRange(1, processes).Draw(r, "writers")
	}
	if w.set != lua.RWLock {
		w.runTurns(r)
		return
	}
	random := func() *rand.Rand { return rand.New(rand.NewSource(rapid.Int64().Draw(r, "seed"))) }
	for p := range processes {
		pause := rapid.SampledFrom([]time.Duration{5 * time.Millisecond, 50 * time.Millisecond, time.Second}).Draw(r, "pause")
		for range rapid.IntRange(1, 2).Draw(r, "readers") {
			random := random()
			w.actors.Go(func() { w.reads(p, random, pause, upgrades) })
		}
		if p < writers {
			random, pause := random(), rapid.SampledFrom([]time.Duration{50 * time.Millisecond, 2 * time.Second, 8 * time.Second}).Draw(r, "pause")
			w.actors.Go(func() { w.writes(p, random, pause) })
		}
	}
	w.disturb(r)
}

// runTurns is the part of schedules for a mutex or a semaphore, which the first process takes all the time.
func (w *retainWorld) runTurns(r *rapid.T) {
	for p := range w.processes {
		pauses := []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 2 * time.Second, 8 * time.Second}
		if p == 0 {
			pauses = []time.Duration{5 * time.Millisecond, 20 * time.Millisecond}
			if w.set == lua.Semaphore { // it has more callers
				pauses = []time.Duration{30 * time.Millisecond, 60 * time.Millisecond}
			}
		}
		pause := rapid.SampledFrom(pauses).Draw(r, "pause")
		most := 2
		if w.set == lua.Semaphore {
			most = 4
		}
		for range rapid.IntRange(1, most).Draw(r, "callers") {
			random := rand.New(rand.NewSource(rapid.Int64().Draw(r, "seed")))
			w.actors.Go(func() { w.takes(p, random, pause) })
		}
	}
	w.disturb(r)
}

// disturb lets time pass, with faults, and ends the schedule.
func (w *retainWorld) disturb(r *rapid.T) {
	events := rapid.IntRange(3, 8).Draw(r, "events")
	for range events {
		w.pass(duration(r, 3*time.Second))
		if !w.faultless {
			w.fault(r)
		}
	}
	promise := retainedProgress
	if w.set != lua.RWLock {
		promise = retainedTurns
	}
	w.conclude(w.pass, promise, func(ctx context.Context, p *process) error {
		w.mu.Lock()
		w.crowded = true // a writer may now wait for the readers that another one has let pass
		w.mu.Unlock()
		lease, err := w.locks[p.id].lock(ctx)
		if err == nil {
			h := &held{p: p.id, lease: lease, write: true, permits: retainLimit}
			w.begins(h, nil)
			w.release(h)
		}
		return err
	})
}

// pass lets time pass, and checks the promises.
func (w *retainWorld) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(min(50*time.Millisecond, time.Until(end)))
		w.mu.Lock()
		w.check(nil)
		w.mu.Unlock()
		w.fail()
	}
}

// TestRetainSimulation runs processes that retain read leases, with faults.
func TestRetainSimulation(t *testing.T) {
	simulateRetained(t, lua.RWLock, 1, "a retained read", "a write", "an upgrade")
}

// TestRetainTurnsSimulation runs processes that retain a mutex, with faults.
func TestRetainTurnsSimulation(t *testing.T) { simulateRetained(t, lua.Mutex, 1, "a retained turn") }

// TestRetainPermitsSimulation runs processes that retain permits of a semaphore, with faults. Each takes four times as long.
func TestRetainPermitsSimulation(t *testing.T) {
	simulateRetained(t, lua.Semaphore, 0.25, "a retained turn")
}

func simulateRetained(t *testing.T, set *lua.Set, part float64, reached ...string) {
	simulatePrograms(t, part, max(few/3, 1), func(w *world) { // each takes long: grants inside are many
		rw := &retainWorld{world: w, set: set, held: map[*held]bool{}, void: map[string]bool{},
			asked: map[string]int{}, listens: map[string]map[*server.Peer]hears{}}
		var err error
		if rw.keys, err = protocol.KeysOf("lock:", name, set.KeyKind, set == lua.Mutex); err != nil {
			panic(err)
		}
		w.server.step, w.server.subscribes = rw.stepped, rw.subscribed
		rw.schedules(w.r)
	}, append(reached, "a grant inside", "a recall", "a lease is lost", "a subscription is replaced",
		"a subscription is lost and restored during a renewal", "a wait ends with its grant")...)
}
