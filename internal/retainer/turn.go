package retainer

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// This file has the turns of a lock with one holder at a time that are granted inside the process. The callers of a name that wait
// are in its local queue, as without Retain. The first of them waits until the caller inside has left, and gets its place; if the lease
// is recalled meanwhile, it asks the server, and the others stay behind it.

// acquireTurn is Acquire, of a lock with one holder at a time, for a caller that was not granted it at once.
func (l *Lock) acquireTurn(ctx context.Context, wait bool) (lifecycle.Handle, error) {
	return l.observed(ctx, wait, func(o *lease.Observation) (h lifecycle.Handle, local bool, err error) {
		return l.turn(ctx, wait, o)
	})
}

// observed makes one acquisition and reports its events. local says that it was granted inside.
func (l *Lock) observed(ctx context.Context, wait bool, acquire func(o *lease.Observation) (h lifecycle.Handle, local bool, err error)) (lifecycle.Handle, error) {
	o := l.lock.NewObservation(ctx, l.flags)
	if wait {
		defer l.lock.WatchWait(nil)()
	}
	o.Starts()
	h, local, err := acquire(o)
	if err = l.lock.AlsoEnded(ctx, err); err != nil {
		o.Ends("", 0, false, err)
		return nil, err
	}
	o.Ends(h.Token(), h.Fence(), local, nil)
	return h, nil
}

// turn waits for the turn of the caller among those of the process, and then for a turn by the lease that the process retains, or
// for a lease of the server. local says that it was granted inside.
func (l *Lock) turn(ctx context.Context, wait bool, o *lease.Observation) (h lifecycle.Handle, local bool, err error) {
	began := time.Now()
	if err := ctx.Err(); err != nil {
		return nil, false, l.lock.Fail(err)
	}
	r := l.find()
	var health *server.Health
	if wait {
		r.waiting.Add(1)
		defer r.waiting.Add(-1)
		if health, err = l.lock.WaitLocally(ctx, l.lock.Keeper().MaxAge(), began); err != nil {
			if x := r.current.Load(); x != nil && x.Certain() && ctx.Err() != nil {
				err = server.Chain(server.ErrNotAcquired, ctx.Err()) // it is held here, so the server need not have answered lately
			}
			return nil, false, l.lock.Fail(err)
		}
		defer l.lock.LeaveLocally()
	}
	if h, err := l.turnInside(ctx, r, health); err != nil {
		return nil, false, err
	} else if h != nil {
		h.observation = o
		return h, true, nil
	}
	x := r.begin()
	if x == nil {
		req, err := l.ordinary.Request(ctx, keeper.Terms{Flags: l.flags, Observation: o, Health: health, Since: began}, wait)
		if err != nil {
			return nil, false, err
		}
		return req, false, nil
	}
	req, err := l.lock.Request(ctx, keeper.Terms{Flags: l.flags + protocol.FlagRetained, Sharing: x, Observation: o, Health: health, Since: began}, wait)
	if err != nil {
		x.abandon()
		return nil, false, err
	}
	return x.open(req, req.Snapshot().WasQueued()), false, nil
}

// turnInside returns a turn by the lease that the process retains. It returns nil if there is none, and else when the lease is to be
// released before the caller gets a turn by it. Without health the caller does not wait for another.
func (l *Lock) turnInside(ctx context.Context, r *name, health *server.Health) (*Lease, error) {
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
			return nil, l.lock.Fail(server.ErrNotAcquired)
		case health == nil: // it is lost
			return nil, nil
		}
		if h, err := x.awaitTurn(ctx, health); err != nil {
			return nil, l.lock.Fail(err)
		} else if h != nil {
			return h, nil
		}
	}
}

// enter makes the caller the one inside, or one of those. If nobody else may enter, it gives the lease back.
func (x *retention) enter() (*Lease, retain.Entry) {
	entry, settle := retain.Closed, false
	if x.of.kind != retain.Reads {
		entry = x.EnterAlone()
	} else {
		var ok bool
		if ok, settle = x.Enter(); ok {
			entry = retain.Entered
		}
	}
	switch {
	case entry == retain.Entered:
		return x.newLease(nil), entry
	case entry == retain.Closed && (x.of.kind != retain.Reads || settle):
		x.turnedAway(settle)
	}
	return nil, entry
}

// leave counts a caller as outside again. The next one that waits takes its place.
func (x *retention) leave() {
	left, settle := true, false
	if x.of.kind != retain.Reads {
		left, settle = x.LeaveAlone()
	} else {
		settle = x.Leave()
	}
	if left && !settle {
		if x.permits > 0 {
			x.of.serve()
		}
		return
	}
	var out retain.Effects
	x.of.mu.Lock()
	x.state.Left(x.Hold, x.of.lock.Keeper().Now(), left, &out)
	x.unlock(&out)
}

// awaitTurn waits until the caller inside has left, and returns a lease in its place. It returns nil if the lease is given back
// instead, or if nobody is inside.
func (x *retention) awaitTurn(ctx context.Context, health *server.Health) (*Lease, error) {
	r := x.of
	e := r.lock.Keeper()
	r.mu.Lock()
	if !x.state.AwaitTurn(x.Hold) {
		r.mu.Unlock()
		return nil, nil
	}
	ended := make(chan struct{})
	x.turn = ended
	r.mu.Unlock()
	var err error
	select {
	case <-ended:
	case <-ctx.Done():
		if err = server.Chain(server.ErrNotAcquired, ctx.Err()); !x.Certain() {
			err = health.WaitError(ctx)
		}
	case <-e.Closing().Done():
		err = server.ErrClosed
	}
	var out retain.Effects
	r.mu.Lock()
	inside := x.state.EndTurn(x.Hold, e.Now(), err == nil && x.Certain(), &out)
	x.unlock(&out)
	if !inside {
		return nil, err
	}
	return x.newLease(nil), nil
}
