package engine

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/retain"
)

// This file has the turns of a lock with one holder at a time that are granted inside the process. The callers of a name that wait
// are in its local queue, as without Retain. The first of them waits until the caller inside has left, and gets its place; if the lease
// is recalled meanwhile, it asks the server, and the others stay behind it.

// localTurn is a caller of this process that waits for the one inside to leave.
type localTurn struct {
	ended   chan struct{} // closed when it does not wait any more
	granted bool          // it is inside now, instead of the one that has left; set before ended is closed
}

// end ends the wait. It may be called on nil.
func (t *localTurn) end(granted bool) {
	if t != nil {
		t.granted = granted
		close(t.ended)
	}
}

// acquireTurn is Acquire, of a lock with one holder at a time, for a caller that was not granted it at once.
func (l *Retaining) acquireTurn(ctx context.Context, wait bool) (Handle, error) {
	e, began, o := l.lock.e, time.Now(), l.lock.NewObservation(ctx, l.flags)
	if wait && e.cfg.LongWait > 0 {
		defer l.lock.WatchWait(l.lock.FirstHolders)()
	}
	if o != nil {
		e.observe(l.lock.Event(AcquireStart, o))
	}
	h, local, err := l.turn(ctx, wait, o)
	err = l.lock.alsoEnded(ctx, err)
	if o != nil {
		ev := l.lock.Event(AcquireDone, o)
		ev.Duration, ev.Local, ev.Err = time.Since(began), local && err == nil, err
		if err == nil {
			ev.Token, ev.Fence = h.Token(), h.Fence()
		}
		e.observe(ev)
	}
	return h, err
}

// turn waits for the turn of the caller among those of the process, and then for a turn by the lease that the process retains, or
// for a lease of the server. local says that it was granted inside.
func (l *Retaining) turn(ctx context.Context, wait bool, o *Observation) (h Handle, local bool, err error) {
	e, key, began := l.lock.e, l.lock.key(keyQueue), time.Now()
	if err := ctx.Err(); err != nil {
		return nil, false, l.lock.fail(err)
	}
	r := l.find()
	var health *ServerHealth
	if wait {
		r.waiting.Add(1)
		defer r.waiting.Add(-1)
		if health, err = e.waitLocally(ctx, key, e.maxAge(), began); err != nil {
			if x := r.current.Load(); x != nil && x.Certain() && ctx.Err() != nil {
				err = Chain(ErrNotAcquired, ctx.Err()) // it is held here, so the server need not have answered lately
			}
			return nil, false, l.lock.fail(err)
		}
		defer e.leaveLocalQueue(key)
	}
	if h, err := l.turnInside(ctx, r, health); err != nil {
		return nil, false, err
	} else if h != nil {
		h.observation = o
		return h, true, nil
	}
	x := r.begin()
	if x == nil {
		req, err := l.ordinary.acquireReplicated(ctx, Terms{Flags: l.flags, observation: o, health: health, since: began}, wait)
		if err != nil {
			return nil, false, err
		}
		return req, false, nil
	}
	req, err := l.lock.acquireReplicated(ctx, Terms{Flags: l.flags + protocol.FlagRetained, retention: x, observation: o, health: health, since: began}, wait)
	if err != nil {
		x.abandon()
		return nil, false, err
	}
	return x.open(req, req.wasQueued()), false, nil
}

// turnInside returns a turn by the lease that the process retains. It returns nil if there is none, and else when the lease is to be
// released before the caller gets a turn by it. Without health the caller does not wait for another.
func (l *Retaining) turnInside(ctx context.Context, r *Retainer, health *ServerHealth) (*LocalLease, error) {
	for {
		x := r.current.Load()
		if x == nil {
			return nil, nil
		}
		h, entry := x.enter()
		switch {
		case entry == retain.Entered:
			return h, nil
		case entry == retain.Closed:
			if health == nil {
				x.awaitRelease(ctx)
			}
			return nil, nil
		case health == nil && x.Certain():
			return nil, l.lock.fail(ErrNotAcquired)
		case health == nil: // it is lost
			return nil, nil
		}
		if h, err := x.awaitTurn(ctx, health); err != nil {
			return nil, l.lock.fail(err)
		} else if h != nil {
			return h, nil
		}
	}
}

// enter makes the caller the one inside, or one of those. If nobody else may enter, it gives the lease back.
func (x *retention) enter() (*LocalLease, retain.Entry) {
	if !x.of.exclusive {
		at, ok, settle := x.Enter()
		if ok {
			return &LocalLease{retention: x, at: at}, retain.Entered
		}
		if settle {
			x.settle()
		}
		return nil, retain.Closed
	}
	at, entry := x.EnterAlone()
	switch entry {
	case retain.Entered:
		return &LocalLease{retention: x, at: at}, entry
	case retain.Closed:
		x.giveBack(false) // this process asks the server now, which would have to wait for it
	}
	return nil, entry
}

// leave counts a caller as outside again. The next one that waits takes its place.
func (x *retention) leave() {
	r := x.of
	if !r.exclusive {
		if x.Leave() {
			x.settle()
		}
		return
	}
	for {
		left, settle := x.LeaveAlone()
		if settle {
			x.settle()
		}
		if left {
			return
		}
		r.mu.Lock()
		next := x.next
		x.next = nil
		passed := next != nil && x.Pass()
		x.Unwant()
		r.mu.Unlock()
		next.end(passed)
		if passed {
			return
		}
		if next != nil {
			x.giveBack(false)
		}
	}
}

// awaitTurn waits until the caller inside has left, and returns a lease in its place. It returns nil if the lease is given back
// instead, or if nobody is inside.
func (x *retention) awaitTurn(ctx context.Context, health *ServerHealth) (h *LocalLease, err error) {
	r, t := x.of, &localTurn{ended: make(chan struct{})}
	e := r.lock.e
	r.mu.Lock()
	if x.closing || !x.Want() {
		r.mu.Unlock()
		return nil, nil
	}
	x.next = t
	r.mu.Unlock()
	select {
	case <-t.ended:
	case <-ctx.Done():
		if err = Chain(ErrNotAcquired, ctx.Err()); !x.Certain() {
			err = health.waitError(ctx)
		}
	case <-e.closing.Done():
		err = ErrClosed
	}
	if err != nil {
		r.mu.Lock()
		if x.next == t {
			x.takeNextLocked()
			r.mu.Unlock()
			return nil, err
		}
		r.mu.Unlock()
		<-t.ended
	}
	switch {
	case !t.granted:
		return nil, err
	case err == nil && x.Certain():
		return &LocalLease{retention: x, at: time.Since(e.started)}, nil
	}
	x.leave()
	return nil, err
}

// takeNextLocked returns the caller that waits, if there is one, which does not wait any more.
func (x *retention) takeNextLocked() *localTurn {
	next := x.next
	if next != nil {
		x.next = nil
		x.Unwant()
	}
	return next
}

// wasQueued reports whether the lease was granted by way of the queue, as far as is known.
func (h *Lease) wasQueued() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.claim.WasQueued()
}
