package keeper

import (
	"context"
	"errors"

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

// BeginConversion marks the lease as being converted. If the outcome of an earlier conversion is unknown, it waits for it;
// the lease may then have become another one.
func (h *Lease) BeginConversion(ctx context.Context) error {
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
				a.begin(h, h.lock.k.Now(), &claim.Event{Kind: claim.ConversionBegan}, nil)
			}
			h.Mu.Unlock()
			a.finish(h, h.lock.k.Transport.Send)
			return h.lock.FailIf(a.err)
		}
		inBackground, resolved := cv.inBackground, cv.resolved()
		h.Mu.Unlock()
		if !inBackground {
			return h.lock.Invalid("the lease is being converted by another call; wait until that call has returned")
		}
		if err := h.lock.k.WaitFor(ctx, resolved); err == server.ErrClosed {
			return h.lock.Fail(err)
		} else if err != nil {
			return h.lock.Fail(server.ErrNoAnswer, err)
		}
	}
}

// ResolveInBackground is called when Convert stops waiting for the outcome. It returns the lease that the caller gets
// instead of h, or nil if the caller keeps h. known reports whether the outcome is known by now.
func (h *Lease) ResolveInBackground(c *Cleanup, direct bool, use string, call *Observation) (instead *Lease, known bool) {
	successor := h
	if direct {
		instead = h.weakerLease(c, use, call)
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
		instead.Step(claim.Event{Kind: claim.Continued}, nil)
		instead.lock.k.leases.remove(instead)
	}
	<-c.Done() // it is about to end
	found := c.Lease()
	if found != nil && h.Err() == nil && found.Err() == nil {
		return found, true
	} else if found != nil {
		found.Abandon()
	}
	h.settle(nil, c.Failure())
	return nil, true
}

// weakerLease returns a lease that is for that use, and is valid whichever lease the server has, h or the one
// that was to replace it. It returns nil if h has ended.
func (h *Lease) weakerLease(c *Cleanup, use string, call *Observation) *Lease {
	h.Mu.Lock()
	if h.ErrLocked() != nil {
		h.Mu.Unlock()
		return nil
	}
	var out claim.Effects
	l := h.lock.NewLease(h.token, h.serial, h.Claim.Twin(&h.lock.Rules, h.lock.k.Now(), &out), call)
	l.request, l.use, l.fence = h.request, use, h.fence
	h.Mu.Unlock()
	l.converting = &conversion{ended: make(chan struct{}), undoing: c, inBackground: true}
	if !h.lock.k.leases.add(l) {
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
		h.Become(found)
		return
	case errors.Is(err, errConverted):
		h.Lose(errConverted)
	case err != nil:
		h.Lose(errUnsure)
	}
	h.EndConversion()
}

// Become makes next, which the server has instead of h, continue h. The holder still has h: its methods act on next, and h
// ends when next does.
func (h *Lease) Become(next *Lease) {
	next.Mu.Lock()
	next.former = h
	next.Mu.Unlock()
	h.Mu.Lock()
	ended := h.ErrLocked() != nil
	var a actions
	if !ended {
		a.begin(h, h.lock.k.Now(), &claim.Event{Kind: claim.Continued}, nil)
		h.next.Store(next)
	}
	h.noConversionLocked() // after which Extend looks for next
	h.Mu.Unlock()
	if ended {
		next.Mu.Lock()
		next.former, next.observation = nil, nil // the end of h was reported, and nobody had next
		next.Mu.Unlock()
		next.Abandon()
		return
	}
	h.lock.k.leases.remove(h)
	h.CheckDeadline() // next may have ended before it was known to continue h
}

// HandOver ends h and returns next, which continued it, for the caller of that call to use directly. It returns nil if they have ended.
func (h *Lease) HandOver(next *Lease, call *Observation) *Lease {
	next.Mu.Lock()
	if next.ErrLocked() != nil {
		next.Mu.Unlock()
		return nil
	}
	next.former, next.observation = nil, call
	next.Mu.Unlock()
	h.endAs(h.lock.ReleasedError())
	h.next.Store(nil) // what the holder of h does from now on is not for next
	h.observe(Released, nil)
	return next
}

// Next returns the lease that continues this one, or nil.
func (h *Lease) Next() *Lease { return h.next.Load() }

// Same reports whether the lease is of this lock.
func (h *Lease) Same(l *server.Resource) bool { return h.lock.Same(l) }

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

// SetUndoing sets the cleanup that determines the outcome of the conversion, or nil if it is known to have had no effect.
func (h *Lease) SetUndoing(c *Cleanup) {
	kind := claim.ConversionLeft
	if c == nil {
		kind = claim.ConversionBegan // another request follows
	}
	h.Mu.Lock()
	var a actions
	if h.converting != nil {
		h.converting.undoing = c
		a.begin(h, h.lock.k.Now(), &claim.Event{Kind: kind}, nil)
	}
	h.Mu.Unlock()
	a.finish(h, h.lock.k.Transport.Send)
}

// Undoing returns what SetUndoing has set, or nil if the lease is not being converted.
func (h *Lease) Undoing() *Cleanup {
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

// EndConversion resumes the lease after a conversion that had no effect.
func (h *Lease) EndConversion() { h.convertedBy(claim.ConversionEnded) }

// ReplacedBy ends h, or the lease that continues it, since the caller has next instead: another one, which has replaced it at the server, or
// another handle for the same.
func (h *Lease) ReplacedBy(next *Lease) {
	switch h = h.current(); {
	case h == next: // it was handed over
	case h.token == next.token:
		h.Detach()
	default:
		h.convertedBy(claim.Replaced)
	}
}

// Detach ends the lease in this process, and leaves it at the server: another handle of the process has it, or another process.
func (h *Lease) Detach() { h.convertedBy(claim.Forgotten) }

// convertedBy ends the conversion by that event.
func (h *Lease) convertedBy(kind claim.Kind) {
	h.Mu.Lock()
	var a actions
	a.begin(h, h.lock.k.Now(), &claim.Event{Kind: kind}, nil)
	h.noConversionLocked()
	h.Mu.Unlock()
	a.finish(h, h.lock.k.Transport.Send)
}

// Denied reports whether the server has refused the request. It may be called on nil.
func (h *Lease) Denied() bool { return h != nil && h.Snapshot().Reason() == claim.ByDenial }
