package retainer

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// This file has the permits of a semaphore that are granted inside the process. Each lease of the pool has the permits of one caller, and goes
// to the next caller that wants as many. Callers who find none ask the server for a lease, which joins the pool; or, while others wait
// there, for an ordinary lease. At most as many permits as there are belong to the process or are requested by it: beyond that, callers
// wait in the local queue of the name. So those of one process alone do not queue at the server, where they would contend with each
// other.

// pool is the leases of a semaphore that the process retains. It is replaced and never changed.
type pool struct {
	open      []*retention // that may admit a caller
	each      int64        // permits of each of these; 0: they differ, or there are none
	permits   int64        // of these, of all other leases of the process, and of its requests for leases
	contended int          // leases that are in use until they are given back, since others wait at the server
	granted   int          // leases that the process has, of any kind: it is certain that their permits are taken
}

// place is where a retention is.
type place uint8

const (
	outside   place = iota // not granted yet
	inPool                 // among pool.open
	contended              // among pool.contended
	closing                // neither, but among pool.permits
	left                   // over
)

// changeLocked replaces the pool.
func (r *name) changeLocked(change func(p *pool)) {
	var p pool
	if old := r.pool.Load(); old != nil {
		p = *old
	}
	change(&p)
	p.each = 0
	for i, x := range p.open {
		if i > 0 && x.permits != p.each {
			p.each = 0
			break
		}
		p.each = x.permits
	}
	r.pool.Store(&p)
}

// placeLocked notes where a retention belongs after an event.
func (r *name) placeLocked(x *retention) {
	switch {
	case x.place == left:
	case x.state.State() == retain.Over:
		r.moveLocked(x, closing)
	case x.state.Contended():
		r.moveLocked(x, contended)
	case x.state.Closing():
		r.moveLocked(x, closing)
	case x.state.State() == retain.Shared:
		r.moveLocked(x, inPool)
	}
}

// openLocked notes that the lease of a retention was granted.
func (r *name) openLocked(x *retention) {
	if x.place != left {
		r.changeLocked(func(p *pool) { p.granted++ })
	}
	r.placeLocked(x)
}

// leaveLocked removes a retention that is over.
func (r *name) leaveLocked(x *retention) {
	r.moveLocked(x, left)
	r.changeLocked(func(p *pool) {
		p.permits -= x.permits
		if x.lease != nil {
			p.granted--
		}
	})
}

func (r *name) moveLocked(x *retention, to place) {
	if x.place == to {
		return
	}
	r.changeLocked(func(p *pool) {
		switch x.place {
		case inPool:
			i := slices.Index(p.open, x)
			p.open = slices.Concat(p.open[:i], p.open[i+1:])
		case contended:
			p.contended--
		}
		switch to {
		case inPool:
			p.open = append(slices.Clip(p.open), x)
		case contended:
			p.contended++
		}
	})
	x.place = to
}

// poolWaiter is a caller in the local queue of a semaphore.
type poolWaiter struct {
	n, limit int64
	ready    chan struct{} // closed when decided is final
	decided  decision      // guarded by the name's mu
}

// decision is what a caller does.
type decision struct {
	does   action
	inside *Lease     // granted
	asks   *retention // of the request of asksForPool
	alone  *alone     // of asksAlone
}

// action is what a caller does.
type action uint8

const (
	waitsInside action = iota // for another caller to leave; or is refused, if it does not wait
	granted                   // by a lease of the pool
	asksForPool               // asks the server for a lease that joins the pool
	asksAlone                 // asks the server for a lease of its own
)

// alone is the permits of an ordinary lease, or of the request for one. It implements lease.Observer.
type alone struct {
	of      *name
	permits int64

	// Guarded by the name's mu.
	granted, over bool
}

// LeaseEvent returns the permits of a lease that is lost.
func (a *alone) LeaseEvent(what lease.EventType) (own bool) {
	if what == lease.Lost {
		a.end()
	}
	return false
}

// CleanedUp returns the permits of a lease that was released.
func (a *alone) CleanedUp() { a.end() }

// grant notes that the lease was granted.
func (a *alone) grant() {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	if !a.over {
		a.granted = true
		a.of.changeLocked(func(p *pool) { p.granted++ })
	}
}

// end returns the permits, once.
func (a *alone) end() {
	r := a.of
	r.mu.Lock()
	was := a.over
	a.over = true
	if !was {
		r.changeLocked(func(p *pool) {
			p.permits -= a.permits
			if a.granted {
				p.granted--
			}
		})
	}
	r.mu.Unlock()
	if !was {
		r.serve()
	}
}

// AcquirePermits is Acquire, of n permits of a semaphore, of which this process has at most limit inside.
func (l *Lock) AcquirePermits(ctx context.Context, n, limit int, wait bool) (lifecycle.Handle, error) {
	r := l.name.Load()
	if r == nil {
		r = l.find()
	}
	if ctx.Err() == nil && r.waiting.Load() == 0 {
		if h := r.enterPool(int64(n)); h != nil {
			r.granted(ctx, h)
			return h, nil
		}
		if !wait && r.isFull(int64(n), int64(limit)) && l.lock.NewObservation(ctx, "") == nil {
			return nil, l.refused
		}
	}
	return l.observed(ctx, wait, func(o *lease.Observation) (h lifecycle.Handle, local bool, err error) {
		if err := ctx.Err(); err != nil {
			return nil, false, l.lock.Fail(err)
		}
		r, t := l.find(), keeper.Terms{Number: n, Observation: o, Since: time.Now()}
		t.Health = r.healthOf(l.lock.Keeper())
		d, err := r.decide(ctx, int64(n), int64(limit), wait, t)
		switch {
		case err != nil:
			return nil, false, l.lock.Fail(err)
		case d.does == granted:
			d.inside.observation = o
			return d.inside, true, nil
		case d.does == waitsInside:
			return nil, false, l.lock.Fail(server.ErrNotAcquired)
		}
		h, err = l.ask(ctx, d, t, wait)
		return h, false, err
	})
}

// ask asks the server for what was decided.
func (l *Lock) ask(ctx context.Context, d decision, t keeper.Terms, wait bool) (lifecycle.Handle, error) {
	if d.does == asksAlone {
		t.Observer = d.alone
		h, err := l.ordinary.Request(ctx, t, wait)
		if err != nil {
			d.alone.end()
			return nil, err
		}
		d.alone.grant()
		return h, nil
	}
	t.Flags, t.Sharing = protocol.FlagRetained, d.asks
	h, err := l.lock.Request(ctx, t, wait)
	if err != nil {
		d.asks.abandon()
		return nil, err
	}
	return d.asks.open(h, h.Snapshot().WasQueued()), nil
}

// healthOf returns what the requests of all callers of the name have found out about the server.
func (r *name) healthOf(k *keeper.Keeper) *server.Health {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.health == nil {
		r.health = &server.Health{MaxAge: k.MaxAge()}
	}
	return r.health
}

// enterPool grants n permits by a lease of the pool, or returns nil. Callers begin at different leases, so that those on different processors
// rarely look at the same one, and only so many leases are in use at a time that the others are found to be unused.
func (r *name) enterPool(n int64) *Lease {
	p := r.pool.Load()
	if p == nil || len(p.open) == 0 {
		return nil
	}
	start := int(rand.Uint32N(uint32(min(len(p.open), runtime.NumCPU()))))
	for i := range p.open {
		x := p.open[(start+i)%len(p.open)]
		if x.permits != n {
			continue
		}
		if h, _ := x.enter(); h != nil {
			return h
		}
	}
	return nil
}

// isFull reports whether the process has all permits, and none in leases of another number, if enterPool has found none of n permits.
func (r *name) isFull(n, limit int64) bool {
	p := r.pool.Load()
	return p != nil && p.permits+n > limit && (p.each == n || len(p.open) == 0)
}

// decide says what a caller does who has found no lease of n permits in the pool, if need be after a wait inside. As in a local queue of
// package wait, a caller fails as well if those before it have given up because the server does not answer, and it has waited for as
// long.
func (r *name) decide(ctx context.Context, n, limit int64, wait bool, t keeper.Terms) (decision, error) {
	w := &poolWaiter{n: n, limit: limit, ready: make(chan struct{})}
	r.mu.Lock()
	r.waiting.Add(1) // those who leave from now on look at the queue
	e := r.queue.PushBack(w)
	unsuited := r.serveLocked()
	if w.decided.does == waitsInside && !wait {
		r.queue.Remove(e)
		r.waiting.Add(-1)
	}
	d := w.decided
	r.mu.Unlock()
	giveBackAll(unsuited)
	if d.does != waitsInside || !wait {
		if d.does == waitsInside && len(unsuited) > 0 && r.pool.Load().permits+n <= limit { // the process has kept them, and nobody uses them
			for _, x := range unsuited {
				x.awaitRelease(ctx)
			}
			return r.decide(ctx, n, limit, wait, t)
		}
		return d, nil
	}

	k := r.lock.Keeper()
	var err error
	select {
	case <-w.ready:
		if d = w.decided; d.does == granted {
			return d, nil
		}
		if err = t.Health.Exhausted(k.Config.Retry, t.Since, time.Now()); err == nil {
			return d, nil
		}
	case <-ctx.Done():
		err = t.Health.WaitError(ctx)
	case <-k.Closing().Done():
		err = server.ErrClosed
	}
	r.mu.Lock()
	if d = w.decided; d.does == waitsInside {
		r.queue.Remove(e)
		r.waiting.Add(-1)
	}
	if p := r.pool.Load(); p != nil && p.granted > 0 && ctx.Err() != nil {
		err = server.Chain(server.ErrNotAcquired, ctx.Err()) // the permits are taken, so the server need not have answered lately
	}
	r.mu.Unlock()
	switch d.does { // it was decided for nobody
	case granted:
		d.inside.retention.leave()
	case asksForPool:
		d.asks.abandon()
	case asksAlone:
		d.alone.end()
	}
	r.serve()
	return decision{}, err
}

// serve looks whether those who wait inside may go on, the first of them first.
func (r *name) serve() {
	if r.waiting.Load() == 0 {
		return
	}
	r.mu.Lock()
	unsuited := r.serveLocked()
	r.mu.Unlock()
	giveBackAll(unsuited)
}

// serveLocked is serve. It returns leases that are to be given back, since the first of those who wait needs their permits in another lease.
func (r *name) serveLocked() (unsuited []*retention) {
	for e := r.queue.Front(); e != nil; e = r.queue.Front() {
		w := e.Value.(*poolWaiter)
		w.decided = r.decideLocked(w, &unsuited)
		if w.decided.does == waitsInside {
			break
		}
		r.queue.Remove(e)
		r.waiting.Add(-1)
		close(w.ready)
	}
	return unsuited
}

// decideLocked decides for the first one that waits inside, and adds to the result of serveLocked.
func (r *name) decideLocked(w *poolWaiter, unsuited *[]*retention) decision {
	var p pool
	if now := r.pool.Load(); now != nil {
		p = *now
	}
	missing := p.permits + w.n - w.limit
	var idle []*retention
	for _, x := range p.open {
		if x.permits != w.n {
			if x.Inside() == 0 {
				idle = append(idle, x)
			}
			continue
		}
		switch x.EnterAlone() {
		case retain.Entered:
			return decision{does: granted, inside: x.newLease(nil)}
		case retain.Closed: // its lease is not certain, or a recall would not come
			*unsuited = append(*unsuited, x)
		}
	}
	if missing <= 0 {
		r.changeLocked(func(p *pool) { p.permits += w.n })
		if p.contended == 0 {
			if x := r.beginLocked(w.n); x != nil {
				return decision{does: asksForPool, asks: x}
			}
		}
		return decision{does: asksAlone, alone: &alone{of: r, permits: w.n}}
	}
	for i := 0; i < len(idle) && missing > 0; i++ {
		missing -= idle[i].permits
		*unsuited = append(*unsuited, idle[i])
	}
	return decision{}
}

func giveBackAll(list []*retention) {
	for _, x := range list {
		x.giveBack(false)
	}
}
