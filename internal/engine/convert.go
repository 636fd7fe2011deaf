package engine

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// conversion is the state of a lease while it is being converted to another one. Until the outcome is known, a renewal that
// is refused does not mean that the lease is lost.
//
// A conversion begins without undoing. If its request is given up, undoing is set, and Convert waits for it. When Convert
// returns before undoing has ended, inBackground is set. It is guarded by the lease's mu.
type conversion struct {
	ended        chan struct{} // closed when it has ended, unless the lease has ended before
	undoing      *Cleanup      // determines the outcome after the request was given up; nil until then
	inBackground bool          // Convert has returned
}

// resolved returns a channel that is closed when the outcome of a conversion that was given up is known, or nil if none
// was given up.
func (cv *conversion) resolved() <-chan struct{} {
	if cv == nil || cv.undoing == nil {
		return nil
	}
	return cv.undoing.finished.Done()
}

// Convert acquires a lease, described by the terms, that replaces another lease of the same name. The server ends the old
// lease and grants the new one in one step, so there is no moment at which neither is held. If the conversion fails, the old
// lease is held as before.
//
// If ctx ends or the server does not answer before the outcome is known, Convert determines the outcome, for cancelGrace in
// the caller's time and then in the background. If the conversion turns out to have taken effect within that time, the new
// lease is returned. Otherwise the caller keeps what both leases permit. If the new lease permits less (t.Direct), Convert
// returns a lease that permits as much as the new one. If it permits more, the caller keeps the old lease and gets the
// error. In either case, that lease becomes the one that the server turns out to have. The new lease lasts at least as long
// as the old one would have, so the old lease's deadline is valid for both.
func (l *Lock) Convert(ctx context.Context, from *Lease, t Terms) (*Lease, error) {
	if from == nil {
		return nil, l.Fail(server.ErrReleased)
	}
	if !from.lock.Same(&l.Lock) {
		return nil, server.Invalid("the lease is of %s %q, of another keeper or another lock than %q; pass a lease of this lock", from.Kind(), from.Name(), l.spec.Name)
	}
	if err := from.beginConversion(ctx); err != nil {
		return nil, err
	}
	if next := from.next.Load(); next != nil {
		if next.Is(t.Flags) { // an earlier call's conversion took effect
			return from.handOver(next), nil
		}
		return l.Convert(ctx, next, t)
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	t.origin, t.Observation = from, l.NewObservation(ctx, t.Flags)
	h, err := l.acquire(from.Context(waiting), t, true) // the wait ends when the old lease does
	if err == nil {
		from.replaced()
		return h, nil
	}
	if c := from.undoing(); c != nil {
		grace := time.NewTimer(cancelGrace)
		defer grace.Stop()
		select {
		case <-c.finished.Done():
		case <-grace.C:
		}
		h, known := from.resolveInBackground(c, t)
		if h == c.of && l.e.cfg.ReplicaAck.enabled() {
			if err = l.awaitReplicas(ctx, h); err != nil {
				h = nil
			}
		}
		if h != nil {
			if h.token == from.token {
				from.detach()
			} else {
				from.replaced()
			}
			return h, nil
		}
		if !known && from.Err() == nil {
			return nil, err
		}
	}
	from.endConversion()
	switch lost := from.Err(); {
	case ctx.Err() != nil && lost != nil:
		err = l.Fail(err, lost)
	case ctx.Err() != nil, errors.Is(err, server.ErrClosed):
	case lost != nil:
		err = l.Fail(lost)
	case errors.Is(err, server.ErrConflict):
	case errors.Is(err, server.ErrNotAcquired): // the server does not know the old lease
		from.loseRefused()
		err = l.Fail(from.Err())
	}
	return nil, err
}

// beginConversion marks the lease as being converted. If the outcome of an earlier conversion is unknown, it waits for it;
// the lease may then have become another one.
func (h *Lease) beginConversion(ctx context.Context) error {
	for {
		if err := h.Err(); err != nil {
			return h.lock.Fail(err)
		}
		h.Mu.Lock()
		cv := h.converting
		if cv == nil {
			var a actions
			if h.next.Load() == nil {
				h.converting = &conversion{ended: make(chan struct{})}
				a.begin(h, h.lock.e.Now(), &claim.Event{Kind: claim.ConversionBegan}, nil)
			}
			h.Mu.Unlock()
			a.finish(h, h.lock.e.Transport.Send)
			return h.lock.FailIf(a.err)
		}
		inBackground, resolved := cv.inBackground, cv.resolved()
		h.Mu.Unlock()
		if !inBackground {
			return server.Invalid("the lease of %q is being converted by another call; wait until that call has returned", h.Name())
		}
		switch h.lock.e.WaitFor(ctx, resolved) {
		case nil:
		case server.ErrClosed:
			return h.lock.Fail(server.ErrClosed)
		default:
			return h.lock.Fail(server.ErrNoAnswer, ctx.Err())
		}
	}
}

// resolveInBackground is called when Convert stops waiting for the outcome. It returns the lease that the caller gets
// instead of h, or nil if the caller keeps h. known reports whether the outcome is known by now.
func (h *Lease) resolveInBackground(c *Cleanup, t Terms) (instead *Lease, known bool) {
	successor := h
	if t.Direct {
		instead = h.weakerLease(c, t)
	}
	if instead != nil {
		successor = instead
	}
	h.Mu.Lock()
	if h.converting != nil {
		h.converting.inBackground = true
	}
	h.Mu.Unlock()
	if c.handTo(successor) {
		return instead, false
	}
	if instead != nil {
		instead.step(claim.Event{Kind: claim.Continued}, nil)
		instead.forget()
	}
	c.await()
	found := c.lease()
	if found != nil && h.Err() == nil {
		return found, true
	} else if found != nil {
		found.abandon()
	}
	h.settle(nil, c.Failure())
	return nil, true
}

// weakerLease returns a lease that permits what the terms say and is valid whichever lease the server has, h or the one
// that was to replace it. It returns nil if h has ended.
func (h *Lease) weakerLease(c *Cleanup, t Terms) *Lease {
	h.Mu.Lock()
	if h.ErrLocked() != nil {
		h.Mu.Unlock()
		return nil
	}
	var out claim.Effects
	l := h.lock.newLease(h.token, h.serial, h.claim.Twin(&h.lock.rules, h.lock.e.Now(), &out), h.observation)
	l.request, l.use, l.fence = h.request, t.Flags, h.fence
	h.Mu.Unlock()
	l.converting = &conversion{ended: make(chan struct{}), undoing: c, inBackground: true}
	if !h.lock.e.addLease(l) {
		return nil
	}
	l.arm(out.Timer)
	return l
}

// settle applies the outcome of a conversion that was given up: the lease that it led to if it took effect, or the error
// if the outcome stays unknown.
func (h *Lease) settle(found *Lease, err error) {
	switch {
	case found != nil:
		h.become(found)
		return
	case errors.Is(err, errConverted):
		h.lose(errConverted)
	case err != nil:
		h.lose(errUnsure)
	}
	h.endConversion()
}

// become makes next, which the server has instead of h, continue h. The holder still has h: its methods act on next, and h
// ends when next does.
func (h *Lease) become(next *Lease) {
	next.Mu.Lock()
	next.former = h
	next.Mu.Unlock()
	h.Mu.Lock()
	ended := h.ErrLocked() != nil
	var a actions
	if !ended {
		a.begin(h, h.lock.e.Now(), &claim.Event{Kind: claim.Continued}, nil)
		h.next.Store(next)
	}
	h.noConversionLocked() // after which Extend looks for next
	h.Mu.Unlock()
	if ended {
		next.abandon()
		return
	}
	h.forget()
	h.CheckDeadline() // next may have ended before it was known to continue h
}

// handOver ends h and returns next, which continued it, for the holder to use directly.
func (h *Lease) handOver(next *Lease) *Lease {
	next.Mu.Lock()
	next.former = nil
	next.Mu.Unlock()
	h.endAs(server.ErrReleased)
	return next
}

// Became reports whether the lease has become one for this use.
func (h *Lease) Became(use string) bool {
	next := h.next.Load()
	return next != nil && next.Is(use)
}

// current returns the lease that h has become, or h.
func (h *Lease) current() *Lease {
	for next := h.next.Load(); next != nil; next = h.next.Load() {
		h = next
	}
	return h
}

// setUndoing sets the cleanup that determines the outcome of the conversion, or nil if it is known to have had no effect.
func (h *Lease) setUndoing(c *Cleanup) {
	kind := claim.ConversionLeft
	if c == nil {
		kind = claim.ConversionBegan // another request follows
	}
	h.Mu.Lock()
	var a actions
	if h.converting != nil {
		h.converting.undoing = c
		a.begin(h, h.lock.e.Now(), &claim.Event{Kind: kind}, nil)
	}
	h.Mu.Unlock()
	a.finish(h, h.lock.e.Transport.Send)
}

func (h *Lease) undoing() *Cleanup {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.converting == nil {
		return nil
	}
	return h.converting.undoing
}

func (h *Lease) isConverting() bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.converting != nil || h.next.Load() != nil
}

// noConversionLocked notes that no conversion of the lease is under way. Who waits for that sees what the caller makes of the lease
// before it unlocks mu.
func (h *Lease) noConversionLocked() {
	if h.converting != nil {
		close(h.converting.ended)
		h.converting = nil
	}
}

// awaitConversion waits until no conversion of the lease is under way, or the lease has ended, and returns true; or until ctx ends.
func (h *Lease) awaitConversion(ctx context.Context) bool {
	h.Mu.Lock()
	cv := h.converting
	h.Mu.Unlock()
	if cv == nil {
		return true
	}
	select {
	case <-cv.ended:
	case <-h.Done():
	case <-ctx.Done():
		return false
	}
	return true
}

// endConversion resumes the lease after a conversion that had no effect.
func (h *Lease) endConversion() { h.convertedBy(claim.ConversionEnded) }

// replaced ends a lease that another one replaced. The server has nothing left to release.
func (h *Lease) replaced() { h.convertedBy(claim.Replaced) }

// detach ends the lease in this process, and leaves it at the server: another handle of the process has it, or another process.
func (h *Lease) detach() { h.convertedBy(claim.Forgotten) }

// convertedBy ends the conversion by that event.
func (h *Lease) convertedBy(kind claim.Kind) {
	h.Mu.Lock()
	var a actions
	a.begin(h, h.lock.e.Now(), &claim.Event{Kind: kind}, nil)
	h.noConversionLocked()
	h.Mu.Unlock()
	a.finish(h, h.lock.e.Transport.Send)
}
