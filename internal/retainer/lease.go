package retainer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Lease is a lease that was granted inside the process. It is part of the lease that the process retains: it has its
// token, fence and deadline, and is lost when that is. It is safe for concurrent use.
type Lease struct {
	retention   *retention
	observation *lease.Observation // the call, for the observer
	state       atomic.Uint32
	lifecycle   atomic.Pointer[lifecycle.Lifecycle] // nil until Done or Context is called
	User        any                                 // what users get of it; see Allocate
}

// Allocate returns a new Lease, and what users get of it. Package lockkeeper sets it, to allocate both at once.
var Allocate = func() (h *Lease, user any) { return &Lease{}, nil }

// newLease returns a lease that is granted now.
func (x *retention) newLease(o *lease.Observation) *Lease {
	h, user := Allocate()
	h.retention, h.User, h.observation = x, user, o
	return h
}

// The states of a Lease.
const (
	localHeld     uint32 = iota
	localReleased        // by its holder
	localEnded           // with the retained lease, and released since
	localDetached        // it is the retained lease, which nobody else uses any more
)

// Name returns what is locked.
func (h *Lease) Name() string { return h.retention.lease.Name() }

// Token returns the identity of the retained lease.
func (h *Lease) Token() string { return h.retention.lease.Token() }

// Fence returns the fencing token of the retained lease.
func (h *Lease) Fence() uint64 { return h.retention.lease.Fence() }

// Deadline returns until when the retained lease is valid if it is not renewed.
func (h *Lease) Deadline() time.Time { return h.retention.lease.Deadline() }

// CheckDeadline implements lifecycle.DeadlineChecker. The goroutine that ends the retained lease may not have reached this one yet.
func (h *Lease) CheckDeadline() {
	if err := h.Err(); err != nil {
		h.end(err)
	}
}

// Err returns nil while the lease is held, and then an error that matches ErrReleased or ErrLost.
func (h *Lease) Err() error {
	if h.state.Load() == localReleased {
		return h.retention.of.lock.Fail(server.ErrReleased)
	}
	return h.retention.lease.Err()
}

// Done returns a channel that is closed when the lease ends.
func (h *Lease) Done() <-chan struct{} { return h.life().Done() }

// Context returns a child of parent that is also canceled when the lease ends.
func (h *Lease) Context(parent context.Context) context.Context { return h.life().Context(parent) }

// OnEnd calls f when the lease ends.
func (h *Lease) OnEnd(f func(error)) (stop func()) { return h.life().OnEnd(f) }

// life returns the Lifecycle of the lease.
func (h *Lease) life() *lifecycle.Lifecycle {
	if lc := h.lifecycle.Load(); lc != nil {
		return lc
	}
	lc := &lifecycle.Lifecycle{}
	lc.Begin(h)
	x := h.retention
	x.of.mu.Lock()
	if !h.lifecycle.CompareAndSwap(nil, lc) {
		x.of.mu.Unlock()
		return h.lifecycle.Load()
	}
	if x.handles == nil {
		x.handles = map[*Lease]struct{}{}
	}
	x.handles[h] = struct{}{}
	x.of.mu.Unlock()
	if err := h.Err(); err != nil { // it has ended before it was known here
		h.end(err)
	}
	return lc
}

// end ends the Lifecycle.
func (h *Lease) end(err error) {
	lc := h.lifecycle.Load()
	if lc == nil {
		return
	}
	h.retention.of.mu.Lock()
	delete(h.retention.handles, h)
	h.retention.of.mu.Unlock()
	lc.End(err)()
}

// Release ends the lease. It does not block: the retained lease stays with the process, or is released in the background if it
// was recalled. See Lease.Release in package lockkeeper.
func (h *Lease) Release(ctx context.Context) error {
	x := h.retention
	var lost error
	state := localReleased
	if !x.Certain() {
		if lost = x.lease.Err(); lost != nil {
			state = localEnded
		}
	}
	if !h.state.CompareAndSwap(localHeld, state) {
		if h.state.Load() == localDetached {
			return x.lease.Release(ctx)
		}
		return nil
	}
	if h.lifecycle.Load() != nil {
		h.end(h.Err())
	}
	if lost == nil || errors.Is(lost, server.ErrReleased) {
		h.report(lease.Released)
	}
	x.leave()
	if errors.Is(lost, server.ErrReleased) {
		return nil // by Close
	}
	return lost
}

// Extend makes the retained lease last for ttl from now, for as long as somebody is inside. Nobody else is granted anything by it from
// then on. If others are inside, who rely on it, the error is ErrInvalid if ttl is less than what renewals ask for.
func (h *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	if err := server.CheckTTL("ttl", ttl); err != nil {
		return err
	}
	if err := h.Err(); err != nil {
		return h.retention.of.lock.Fail(err)
	}
	x := h.retention
	if h.state.Load() == localDetached {
		return x.lease.Extend(ctx, ttl)
	}
	suits := func() error {
		if n, least := x.Inside()-1, x.lease.RenewalTTL(); n > 0 && ttl < least {
			return server.Invalid("ttl %v is less than the %v of the lease of %q, which %d other readers of this process share (Retain)", ttl, least, h.Name(), n)
		}
		return nil
	}
	if err := suits(); err != nil {
		return err
	}
	x.giveBack(false)
	if h.state.Load() == localReleased {
		return x.of.lock.Fail(server.ErrReleased) // meanwhile, so the lease may be another caller's by now
	}
	return x.lease.ExtendIf(ctx, ttl, suits) // others may have entered, or extended it, since it was looked at
}

// awaitAlone returns when one of the channels is ready, or with the error that ends the wait for them.
func (h *Lease) awaitAlone(ctx context.Context, l *keeper.Lock, alone <-chan struct{}, again <-chan time.Time) error {
	select {
	case <-alone:
	case <-again:
	case <-h.Done():
	case <-ctx.Done():
		return l.Fail(server.ErrNotAcquired, ctx.Err())
	case <-l.Keeper().Closing().Done():
		return l.Fail(server.ErrClosed)
	}
	return l.FailIf(h.Err())
}

// Own returns the lease at the server if the caller of an upgrade was given it for its own, else nil.
func (h *Lease) Own() *lease.Lease {
	if h.state.Load() != localDetached {
		return nil
	}
	return h.retention.lease
}

// report reports to the observer that the lease was renewed, lost or released.
func (h *Lease) report(what lease.EventType) {
	if h.observation != nil {
		ev := h.retention.of.lock.Event(what, h.observation)
		ev.Token, ev.Fence, ev.Local = h.retention.lease.Granted(), h.Fence(), true
		if what == lease.Lost {
			ev.Err = h.Err()
		}
		h.observation.OfLease(ev)
	}
}

// Convert is that of keeper.Lock for a read lease that was granted inside the process. It first waits until all others that were granted by
// the same retained lease have been released, and then converts that. If another call waits for the same, it returns ErrConflict at
// once.
func Convert(ctx context.Context, l *keeper.Lock, from *Lease, t keeper.Terms) (*lease.Lease, error) {
	if x := from.retention.of.lock; !x.Same(l.AtServer()) {
		return nil, server.Invalid("the lease is of %s %q, of another keeper or another lock than %q; pass a lease of this lock", l.Kind(), from.Name(), l.Name())
	}
	t.Observation = l.NewObservation(ctx, t.Flags)
	t.Observation.Starts()
	stop := l.WatchWait(nil)
	own, err := from.detach(ctx, l)
	stop()
	if err != nil {
		t.Observation.Ends("", 0, false, err)
		return nil, err
	}
	return l.Convert(ctx, own, t)
}

// detach waits until nobody else is inside, and returns the lease at the server, which from then on is the caller's own.
func (h *Lease) detach(ctx context.Context, l *keeper.Lock) (*lease.Lease, error) {
	if own := h.Own(); own != nil {
		return own, nil
	}
	if err := h.Err(); err != nil {
		return nil, l.Fail(err)
	}
	x := h.retention
	r := x.of
	var out retain.Effects
	alone := make(chan struct{})
	r.mu.Lock()
	if x.upgrader == h {
		r.mu.Unlock()
		return nil, server.Invalid("the lease of %q is being converted by another call; wait until that call has returned", h.Name())
	}
	if !x.state.Upgrade(x.Hold, l.Keeper().Now(), &out) {
		r.mu.Unlock()
		return nil, l.Fail(server.ErrConflict)
	}
	x.upgrader, x.alone = h, alone
	x.unlock(&out)

	var err error
	var again <-chan time.Time
	for own := false; !own && err == nil; {
		err = h.awaitAlone(ctx, l, alone, again)
		out = retain.Effects{}
		alone = make(chan struct{})
		r.mu.Lock()
		x.alone = alone
		switch {
		case err != nil || !x.state.Alone(x.Hold, l.Keeper().Now(), &out):
		case !x.Certain(): // it has ended just now or ends soon, unless a renewal is answered
			again = time.After(10 * time.Millisecond)
		case h.state.CompareAndSwap(localHeld, localDetached):
			x.state.Detach(&out)
			own = true
		default:
			err = l.Fail(server.ErrReleased)
		}
		if err != nil {
			x.state.EndUpgrade()
			x.upgrader = nil
		}
		x.unlock(&out)
	}
	if err != nil {
		return nil, err
	}
	return x.lease, nil
}
