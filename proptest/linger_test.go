package proptest

import (
	"context"
	"errors"
	"maps"
	"math/rand"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"pgregory.net/rapid"
)

// The promises about leases that the callers of a process share for Linger. They hold whatever happens to messages, processes, network and
// server, but for leases that the server has lost with its data, or that have expired because its clock was set forward: fences exist for
// them. Beside these, exclusion, belief, kept and nothing are as in the simulation: a caller considers its lease held from the return of
// the call to that of Release, unless Err says otherwise.
const (
	// A lease ends by the release of its last caller, or is lost.
	sharedEnds = "no lease is released before its callers have left"
	// Two grants have the same fence only if they are of one lease, which a process with Linger shares; without faults, until Linger has
	// passed.
	sharedFences = "fences are equal only within a shared lease"
	// Nobody is granted a lease that was lost before the call, nor one that was granted before a writer of the process has called.
	sharedEnded = "nobody enters a lease that the process shares no more"
	// Without faults a lease is released when Linger has passed and nobody is inside.
	sharedReleased = "a lease is released after Linger when nobody is inside"
	// Without faults nobody waits longer than those before it hold the lock, and Linger for each of their leases. With faults, all are served
	// when those have ended, although others take the lock again and again.
	sharedProgress = "nobody waits longer than Linger for a process that shares its lease"
	// The permits that callers consider held are never more than the limit, and no lease of a semaphore or a mutex belongs to two of them.
	sharedAlone = "permits are never held beyond the limit, nor by two callers"
)

const (
	lingerReads  = 200 * time.Millisecond // the longest a reader is inside
	lingerWrites = 100 * time.Millisecond // the longest a writer holds
	lingerTurns  = 20 * time.Millisecond  // the longest that a mutex or a permit is held
	lingerLimit  = 2                      // permits of a semaphore
)

// lingerWorld is a world whose processes use one lock with Linger, and what their callers consider held.
type lingerWorld struct {
	*world
	set       *lua.Set // of the lock: a rwlock, a mutex or a semaphore
	keys      protocol.Keys
	faultless bool
	linger    time.Duration
	locks     []lingerLock // by process
	callers   int          // of all processes, without writers
	snapshot  []record

	// Guarded by world.mu.
	held    map[*held]bool
	void    map[string]bool // tokens whose leases the server has lost
	crowded bool            // others have come beside the callers of the schedule
	waiting []*wait
	tokens  map[string]*tokenUse
	fences  map[uint64]string // the token of each fence
	lost    map[string]time.Time
	inDoubt map[string]bool   // tokens of which the server may have a larger fence than their callers know
	writing map[int]time.Time // when a writer of a process has called that waits
}

// lingerLock is the lock of one process: the one that the world is about.
type lingerLock struct {
	*rwlock.Lock
	turns   *mutex.Mutex
	permits *semaphore.Semaphore
	linger  time.Duration // 0: it is not set
	frozen  time.Time     // until then its callers do nothing
	closed  bool
}

// tokenUse is what is known of a lease.
type tokenUse struct {
	p       int
	granted time.Time // by the server
	left    time.Time // when a caller last left
	inside  int
	held    bool // at the server, after the last script
}

// held is a lease that its holder considers held.
type held struct {
	p          int
	began      time.Time // the call
	lease      *lockkeeper.Lease
	write      bool
	permits    int  // of a semaphore
	converting bool // a call that converts it is under way
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
func (w *lingerWorld) acquire(random *rand.Rand, timeout time.Duration, get acquirer) (*lockkeeper.Lease, error) {
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
func (w *lingerWorld) remove(c *wait) {
	w.waiting = slices.DeleteFunc(w.waiting, func(other *wait) bool { return other == c })
}

// leases returns the leases at the server. The caller holds the server's mutex, and has updated its clock.
func (w *lingerWorld) leases() map[string]lease {
	v := &view{now: w.server.nowLocked().UnixMicro(), leases: map[string]lease{}}
	if w.set == lua.Mutex {
		v.seq, _ = strconv.ParseUint(strings.TrimPrefix(w.server.mini.HGet(w.keys.Meta, "seq"), "-"), 10, 64)
		leasesInString(w.server.mini, w.keys, v)
	} else {
		leasesInSet(w.server.mini, w.keys, v)
	}
	for token, l := range v.leases {
		if l.ends <= v.now {
			delete(v.leases, token)
		}
	}
	return v.leases
}

// stepped checks the promises after each script.
func (w *lingerWorld) stepped(script) {
	leases := w.leases()
	w.mu.Lock()
	defer w.mu.Unlock()
	for token := range leases {
		w.useLocked(token)
	}
	for token, u := range w.tokens {
		if _, u.held = leases[token]; !u.held && u.inside == 0 {
			delete(w.tokens, token)
		}
	}
	w.check(leases)
}

// useLocked returns what is known of a lease. The caller holds the mutex.
func (w *lingerWorld) useLocked(token string) *tokenUse {
	u := w.tokens[token]
	if u == nil {
		t, _ := protocol.ParseToken(token)
		u = &tokenUse{granted: time.Now(), p: slices.IndexFunc(w.processes, func(p *process) bool { return p.ID() == t.Keeper })}
		w.tokens[token] = u
	}
	return u
}

// check checks what callers consider held. leases is nil if the server is not looked at. The caller holds the mutex.
func (w *lingerWorld) check(leases map[string]lease) {
	var readers, writers []string
	for h := range w.held {
		token := h.lease.Token()
		if w.void[token] {
			continue
		}
		switch err := h.lease.Err(); {
		case err == nil:
		case errors.Is(err, lockkeeper.ErrReleased) && !w.closing && !w.locks[h.p].closed:
			w.breaksLocked(sharedEnds, "%s of process %d: %v", token, h.p, err)
			continue
		default:
			if w.faultless && !w.closing {
				w.breaksLocked(kept, "%s of process %d: %v", token, h.p, err)
			}
			continue
		}
		if h.write {
			writers = append(writers, token)
		} else {
			readers = append(readers, token)
		}
		if leases == nil {
			continue
		}
		if l, is := leases[token]; !is || h.write && w.set == lua.RWLock && !writesBy(token, l) {
			w.breaksLocked(belief, "%s of process %d, which writes: %v", token, h.p, h.write)
		} else if l.fence < h.lease.Fence() || l.fence > h.lease.Fence() && !h.converting && !w.inDoubt[token] {
			w.breaksLocked(belief, "%s has fence %d, and %d at the server", token, h.lease.Fence(), l.fence)
		}
	}
	if w.set != lua.RWLock {
		w.checkAlone()
	} else if len(writers) > 1 || len(writers) > 0 && len(readers) > 0 {
		w.breaksLocked(exclusion, "readers %v, writers %v", readers, writers)
	}
	for token, u := range w.tokens {
		over := u.granted.Add(w.locks[u.p].linger)
		if u.left.After(over) {
			over = u.left
		}
		if idle := time.Since(over); w.faultless && !w.closing && u.held && u.inside == 0 && idle > w.slack() {
			w.breaksLocked(sharedReleased, "%s of process %d, for %v", token, u.p, idle)
		}
	}
}

// slack is how long replies and messages are under way at most, until one is acted upon.
func (w *lingerWorld) slack() time.Duration { return 10*time.Millisecond + 6*w.lag }

// checkAlone checks what callers hold of a mutex or a semaphore. The caller holds the mutex.
func (w *lingerWorld) checkAlone() {
	n, tokens := 0, map[string]bool{}
	for h := range w.held {
		token := h.lease.Token()
		if w.void[token] || h.lease.Err() != nil {
			continue
		}
		if n += h.permits; n > lingerLimit || tokens[token] {
			w.breaksLocked(sharedAlone, "%d of %d permits, also of %s: %v", h.permits, lingerLimit, token, tokens)
		}
		tokens[token] = true
	}
}

// begins records that the caller considers a lease held.
func (w *lingerWorld) begins(h *held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beginsLocked(h, nil)
}

// beginsLocked records that the caller considers a lease held, in place of what it was before a conversion; nil: nothing. The
// caller holds the mutex.
func (w *lingerWorld) beginsLocked(h, instead *held) {
	if instead != nil {
		delete(w.held, instead)
		w.leftLocked(instead)
	}
	w.held[h] = true
	token, fence := h.lease.Token(), h.lease.Fence()
	if was, known := w.fences[fence]; known && w.setBack == 0 && (was != token || w.locks[h.p].linger == 0 && instead == nil) {
		w.breaksLocked(sharedFences, "%s of process %d has fence %d, as %s", token, h.p, fence, was)
	}
	w.fences[fence] = token
	u := w.useLocked(token)
	u.inside++
	if at, lost := w.lost[token]; lost && at.Before(h.began) {
		w.breaksLocked(sharedEnded, "%s of process %d, lost %v before the call", token, h.p, h.began.Sub(at))
	}
	if at, writes := w.writing[h.p]; writes && !h.write && at.Before(h.began) && u.granted.Before(at) {
		w.breaksLocked(sharedEnded, "%s of process %d, %v after a writer", token, h.p, h.began.Sub(at))
	}
	if late := time.Since(u.granted) - w.locks[h.p].linger; w.faultless && w.locks[h.p].linger > 0 && !u.left.IsZero() && late > w.slack() {
		w.breaksLocked(sharedFences, "%s of process %d, %v after Linger", token, h.p, late)
	}
	w.check(nil)
}

// leftLocked notes that a caller has left. The caller holds the mutex.
func (w *lingerWorld) leftLocked(h *held) {
	u := w.useLocked(h.lease.Token())
	u.inside--
	u.left = time.Now()
}

// awake waits until a process runs, if it is frozen.
func (w *lingerWorld) awake(p int) {
	w.mu.Lock()
	d := time.Until(w.locks[p].frozen)
	w.mu.Unlock()
	time.Sleep(d)
}

// release releases a lease. Sometimes the context of a caller who waits ends as that is granted the lease.
func (w *lingerWorld) release(h *held) {
	w.awake(h.p)
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
		w.mu.Lock()
		defer w.mu.Unlock()
		w.leftLocked(h)
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

// converts upgrades a lease, or downgrades it, and returns what is held then.
func (w *lingerWorld) converts(from *held, write bool, timeout time.Duration) *held {
	w.mu.Lock()
	from.converting, from.write = true, false
	w.mu.Unlock()
	fence, convert := from.lease.Fence(), w.locks[from.p].Downgrade
	if write {
		convert = w.locks[from.p].Upgrade
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	err := convert(ctx, from.lease)
	w.awake(from.p)
	w.mu.Lock()
	defer w.mu.Unlock()
	from.converting = false
	token, rises := from.lease.Token(), from.lease.Fence() > fence
	switch {
	case err != nil:
		from.write = !write
		w.inDoubt[token] = w.inDoubt[token] || write
		w.check(nil)
		return from
	case !rises && write && from.lease.Err() == nil:
		w.breaksLocked(fences, "%s of process %d writes with fence %d", token, from.p, fence)
	case !rises:
		w.inDoubt[token] = true
	default:
		delete(w.inDoubt, token)
	}
	h := &held{p: from.p, began: from.began, lease: from.lease, write: write}
	w.beginsLocked(h, from)
	if write {
		w.tally["an upgrade"]++
	} else {
		w.tally["a downgrade"]++
	}
	return h
}

// program is what callers do again and again: they acquire what get draws, for which they wait for patience, and without faults no longer
// than most, and hold it for up to longest.
type program struct {
	get                     func(l *lingerLock, random *rand.Rand) (get acquirer, permits int)
	write, upgrades         bool
	patience, most, longest time.Duration
	spread                  int // they hold it for half, a quarter, and so on, as often
}

type acquirer = func(context.Context) (*lockkeeper.Lease, error)

// runs runs a program of a process until the schedule ends.
func (w *lingerWorld) runs(x program, p int, random *rand.Rand, pause time.Duration) {
	l := &w.locks[p]
	writes := x.write && w.set == lua.RWLock
	for !w.isClosing() {
		time.Sleep(time.Microsecond + time.Duration(random.Int63n(int64(pause))))
		w.awake(p)
		get, permits := x.get(l, random)
		h := &held{p: p, began: time.Now(), write: x.write, permits: permits}
		w.mu.Lock()
		if writes {
			w.writing[p] = h.began
		}
		w.mu.Unlock()
		var err error
		h.lease, err = w.acquire(random, x.patience, get)
		w.mu.Lock()
		if writes {
			delete(w.writing, p)
		}
		if took := time.Since(h.began); w.faultless && took > x.most && !w.crowded {
			w.breaksLocked(sharedProgress, "process %d waited for %v: %v", p, took, err)
		}
		w.mu.Unlock()
		if err != nil {
			continue
		}
		if writes {
			w.reach("a write")
		}
		w.begins(h)
		time.Sleep(time.Duration(random.Int63n(int64(x.longest))) / time.Duration(1<<random.Intn(x.spread)))
		if x.upgrades && random.Intn(4) == 0 {
			if h = w.converts(h, true, 500*time.Millisecond); h.write && random.Intn(2) == 0 {
				time.Sleep(time.Duration(random.Int63n(int64(lingerWrites))))
				w.awake(p)
				h = w.converts(h, false, time.Duration(random.Intn(2))*500*time.Millisecond+5*time.Millisecond)
			}
		}
		w.release(h)
	}
}

// reads, writes and takes are the programs of readers, of writers, and of those who take a mutex or permits.
func (w *lingerWorld) reads(upgrades bool) program {
	get := func(l *lingerLock, _ *rand.Rand) (acquirer, int) { return l.RLock, 0 }
	return program{get: get, upgrades: upgrades, patience: 3*time.Second + w.linger, most: 3*time.Second + w.linger, longest: lingerReads, spread: 8}
}

func (w *lingerWorld) writes() program {
	get := func(l *lingerLock, random *rand.Rand) (acquirer, int) {
		if random.Intn(4) == 0 {
			return l.TryLock, 0
		}
		return l.Lock.Lock, 0
	}
	most := w.linger + lingerReads + w.slack()
	return program{get: get, write: true, patience: 10*time.Second + w.linger, most: most, longest: lingerWrites, spread: 1}
}

func (w *lingerWorld) takes() program {
	get := func(l *lingerLock, random *rand.Rand) (acquirer, int) {
		permits, locker := 0, lockkeeper.Locker(l.turns)
		if l.permits != nil {
			permits = 1
			if random.Intn(6) == 0 {
				permits = lingerLimit
			}
			locker, _ = l.permits.LockerN(permits)
		}
		if random.Intn(8) == 0 {
			return locker.TryLock, permits
		}
		return locker.Lock, permits
	}
	most := time.Duration(w.callers) * (w.linger + lingerTurns + w.slack())
	return program{get: get, write: true, patience: max(time.Minute, most), most: most, longest: lingerTurns, spread: 8}
}

// lock acquires the lock of a process for writing, or its mutex, or all permits.
func (l *lingerLock) lock(ctx context.Context) (*lockkeeper.Lease, error) {
	switch {
	case l.turns != nil:
		return l.turns.Lock(ctx)
	case l.permits != nil:
		return l.permits.AcquireN(ctx, lingerLimit)
	}
	return l.Lock.Lock(ctx)
}

// joins starts a process with a lock.
func (w *lingerWorld) joins(ttl, linger time.Duration) {
	k := w.startProcess(func(*process) lockkeeper.Hooks {
		return lockkeeper.Hooks{
			AcquireDone: func(e lockkeeper.Event) {
				if e.Local {
					w.reach("a grant inside")
				}
			},
			Lost: func(e lockkeeper.Event) {
				w.reach("a lease is lost")
				w.mu.Lock()
				defer w.mu.Unlock()
				w.lost[e.Token] = time.Now()
			},
		}
	}).Keeper
	l := lingerLock{linger: linger}
	var err error
	switch w.set {
	case lua.Mutex:
		l.turns, err = mutex.New(k, name, &mutex.Options{TTL: ttl, Linger: linger})
	case lua.Semaphore:
		l.permits, err = semaphore.New(k, name, lingerLimit, &semaphore.Options{TTL: ttl, Linger: linger})
	default:
		l.Lock, err = rwlock.New(k, name, &rwlock.Options{TTL: ttl, Linger: linger})
	}
	if err != nil {
		panic(err)
	}
	w.locks = append(w.locks, l)
}

// lose records that the server loses the leases that it has. It calls fn before the server grants another one.
func (w *lingerWorld) lose(fn func()) {
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
func (w *lingerWorld) fault(r *rapid.T) {
	what, p, d := w.disturbance(r, 8*time.Second, append([]string{
		"messages are lost", "subscription cut", "server restarts empty", "failover", "clock forward", "snapshot", "stopped", "stopped", "break",
		"close",
	}, faults...))
	switch what {
	case "messages are lost":
		p.link.BlackholeSubscriptions()
	case "subscription cut":
		p.link.CutSubscriptions()
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
	case "stopped":
		w.stops(p, d)
	case "break":
		w.breaksLease(p)
	case "close":
		if l := &w.locks[p.id]; p.id > 0 && rapid.IntRange(0, 3).Draw(r, "close") == 0 {
			w.mu.Lock()
			l.closed = true
			w.mu.Unlock()
			w.actors.Go(func() { _ = p.Close() })
		}
	default:
		if w.inject(r, what, p, d); what == "clock back" {
			w.snapshot = nil // a failover restores nothing from before
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.check(nil)
}

// stops freezes a process, its callers as well, while one is inside or while it has a lease that nobody uses. Its timers run, so what it
// sends when Linger ends arrives when it runs again.
func (w *lingerWorld) stops(p *process, d time.Duration) {
	p.link.Freeze(true)
	time.AfterFunc(d, p.link.Thaw)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.locks[p.id].frozen = time.Now().Add(d)
	for _, u := range w.tokens {
		switch linger := w.locks[p.id].linger; {
		case u.p != p.id:
		case u.inside > 0:
			w.tally["stopped inside"]++
		case linger > 0 && time.Until(u.granted.Add(linger)) < d:
			w.tally["stopped before it releases"]++
		case linger > 0:
			w.tally["stopped while it shares what nobody uses"]++
		}
	}
}

// breaksLease ends a lease by the keeper of a process.
func (w *lingerWorld) breaksLease(p *process) {
	w.server.mu.Lock()
	w.server.tickLocked()
	leases := w.leases()
	w.server.mu.Unlock()
	if len(leases) == 0 {
		return
	}
	token := slices.Min(slices.Collect(maps.Keys(leases)))
	w.mu.Lock()
	w.void[token] = true // its holder may learn of it later than whoever has it next
	w.mu.Unlock()
	w.actors.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		b, err := admin.Break(ctx, p.Keeper, lockkeeper.Kind(w.set.Kind), name, &admin.BreakOptions{Token: token})
		if err == nil && len(b.Holders) > 0 {
			w.reach("a lease is broken")
		}
	})
}

// schedules draws a schedule.
func (w *lingerWorld) schedules(r *rapid.T) {
	w.faultless = rapid.IntRange(0, 3).Draw(r, "without faults") == 0
	ttl := rapid.SampledFrom([]time.Duration{10 * time.Second, 3 * time.Second, time.Second, 10 * time.Millisecond, time.Minute}).Draw(r, "ttl")
	lingers := []time.Duration{2 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond, ttl / 3} // the greatest, but of a minute
	switch ttl {
	case 10 * time.Millisecond:
		lingers = []time.Duration{time.Nanosecond, time.Microsecond, ttl / 3}
	case time.Minute:
		lingers = []time.Duration{time.Nanosecond, 10 * time.Second}
	}
	w.linger = rapid.SampledFrom(lingers).Draw(r, "linger")
	w.lag = rapid.SampledFrom([]time.Duration{0, 2 * time.Millisecond}).Draw(r, "lag")
	if ttl < time.Second {
		w.lag = 0 // else a round trip may take longer than what is left of a lease when it is renewed
	}
	processes := rapid.IntRange(2, 3).Draw(r, "processes")
	for range processes - 1 {
		w.joins(ttl, w.linger)
	}
	w.joins(ttl, rapid.SampledFrom([]time.Duration{0, w.linger}).Draw(r, "linger of the last"))
	upgrades := !w.faultless && rapid.Bool().Draw(r, "upgrades")
	writers := 1
	if !w.faultless {
		writers = rapid.IntRange(1, processes).Draw(r, "writers")
	}
	runs := func(x program, p int, pauses ...time.Duration) {
		pause := rapid.SampledFrom(pauses).Draw(r, "pause")
		random := rand.New(rand.NewSource(rapid.Int64().Draw(r, "seed")))
		w.actors.Go(func() { w.runs(x, p, random, pause) })
	}
	callers := rapid.IntRange(1, 3).Draw(r, "callers")
	w.callers = processes * callers
	program := w.takes()
	if w.set == lua.RWLock {
		program = w.reads(upgrades)
	}
	for p := range processes {
		for range callers {
			runs(program, p, 5*time.Millisecond, 50*time.Millisecond, time.Second)
		}
		if p < writers && w.set == lua.RWLock {
			runs(w.writes(), p, 50*time.Millisecond, 2*time.Second, 8*time.Second)
		}
	}
	for range rapid.IntRange(3, 8).Draw(r, "events") {
		w.pass(duration(r, 3*time.Second))
		if !w.faultless {
			w.fault(r)
		}
	}
	w.conclude(time.Minute+ttl+time.Duration(w.callers)*w.linger, 0, w.pass, sharedProgress, w.serves)
}

// serves acquires the lock of a process at the end of a schedule.
func (w *lingerWorld) serves(ctx context.Context, p *process) (err error) {
	l := &w.locks[p.id]
	if l.closed {
		return nil
	}
	w.mu.Lock()
	w.crowded = true // a writer may now wait for the readers that another one has let pass
	w.mu.Unlock()
	h := &held{p: p.id, began: time.Now(), write: true, permits: lingerLimit}
	if h.lease, err = l.lock(ctx); err == nil {
		w.begins(h)
		w.release(h)
	}
	return err
}

// pass lets time pass, and checks the promises.
func (w *lingerWorld) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(min(50*time.Millisecond, time.Until(end)))
		w.mu.Lock()
		w.check(nil)
		w.mu.Unlock()
		w.fail()
	}
}

// TestLingerSimulation runs processes whose readers share a lease, with faults.
func TestLingerSimulation(t *testing.T) {
	simulateLinger(t, lua.RWLock, 1, "a write", "an upgrade", "a downgrade")
}

// TestLingerTurnsSimulation runs processes that pass on a mutex, with faults.
func TestLingerTurnsSimulation(t *testing.T) { simulateLinger(t, lua.Mutex, 1) }

// TestLingerPermitsSimulation runs processes that pass on permits of a semaphore, with faults. Each takes longer.
func TestLingerPermitsSimulation(t *testing.T) { simulateLinger(t, lua.Semaphore, 0.5) }

func simulateLinger(t *testing.T, set *lua.Set, part float64, reached ...string) {
	simulatePrograms(t, part, max(few/3, 1), func(w *world) { // each takes long: grants inside are many
		lw := &lingerWorld{
			world: w, set: set, held: map[*held]bool{}, void: map[string]bool{}, tokens: map[string]*tokenUse{},
			fences: map[uint64]string{}, lost: map[string]time.Time{}, inDoubt: map[string]bool{}, writing: map[int]time.Time{},
		}
		var err error
		if lw.keys, err = protocol.KeysOf("lock:", name, set.KeyKind, set == lua.Mutex); err != nil {
			panic(err)
		}
		w.server.step = lw.stepped
		lw.schedules(w.r)
	}, append(reached, "a grant inside", "a lease is lost", "a lease is broken", "a wait ends with its grant", "stopped inside",
		"stopped before it releases", "stopped while it shares what nobody uses", "close")...)
}
