package engine

import (
	"context"
	"errors"
	"time"
)

// conversion is what there is to know of a lease that is being turned into another. Until that is known to have come about, or
// not to, a renewal that is refused means nothing.
type conversion struct {
	undoing      *Cleanup // that finds out what has become of it, once it was given up; nil: it was not, or has not begun
	inBackground bool     // Convert has returned
}

// known is closed when it is known what has become of a conversion that was given up; nil if there is none.
func (c *conversion) known() <-chan struct{} {
	if c == nil || c.undoing == nil {
		return nil
	}
	return c.undoing.finished
}

// Convert waits for a lease that comes in the place of another one of the same name, which ends in the same step at the
// server: there is no moment at which neither is held. The terms say what the new lease is. If it does not come about,
// the other one is held as before.
//
// If ctx ends, or nothing is heard from the server, before that is known, Convert goes on asking what has become of it, for
// graceAfterEnd in the caller's time and then in the background. If the other lease has come by then, it is returned after
// all. Else, what the caller may believe is what both leases have in common, and it is kept. Where the new lease allows
// less (t.Direct), it is a lease like that, which is returned. Where it allows more, it is the one that there was, and the error
// is returned. Whichever it is, it becomes the lease that the server turns out to have; which lasts for at least as long as
// the one before it would have, so that the deadline of that holds for both.
func (l *Lock) Convert(ctx context.Context, from *Lease, t Terms) (*Lease, error) {
	if from == nil {
		return nil, l.fail(ErrReleased)
	}
	if from.lock.keys != l.keys || from.lock.e != l.e {
		return nil, Invalid("the lease is of %s %q in another keeper or of another lock than %q", from.Kind(), from.Name(), l.spec.Name)
	}
	if err := from.convert(ctx); err != nil {
		return nil, err
	}
	if next := from.next.Load(); next != nil {
		if next.Is(t.Flags) { // an earlier call has brought it about
			return from.handOver(next), nil
		}
		return l.Convert(ctx, next, t)
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	t.origin = from
	w, err := l.obtain(from.Context(waiting), t, true) // the wait ends with the lease that it is for
	if err == nil {
		from.replaced()
		return w.lease, nil
	}
	if d := from.undoing(); d != nil {
		grace := time.NewTimer(cancelGrace)
		defer grace.Stop()
		select {
		case <-d.finished:
		case <-grace.C:
		}
		h, known := from.resolveInBackground(d, t)
		if h != nil && l.e.cfg.ReplicaAck.enabled() && h.request != nil && h.token == d.token {
			if err = l.awaitReplicas(ctx, h.request, h); err != nil {
				h = nil
			}
		}
		if h != nil {
			from.replaced()
			return h, nil
		}
		if !known && from.Err() == nil {
			return nil, err
		}
	}
	from.endConversion()
	switch lost := from.Err(); {
	case ctx.Err() != nil && lost != nil:
		err = l.fail(err, lost)
	case ctx.Err() != nil, errors.Is(err, ErrClosed):
	case lost != nil:
		err = l.fail(lost)
	case errors.Is(err, ErrConflict):
	case errors.Is(err, ErrNotAcquired): // the server does not know the lease that was to be converted
		from.lose(ErrNotHeld)
		err = l.fail(from.Err())
	}
	return nil, err
}

// convert notes that the lease is being converted. What an earlier call has left unknown is waited for; then it may have become
// another one.
func (h *Lease) convert(ctx context.Context) error {
	for {
		if err := h.Err(); err != nil {
			return h.lock.fail(err)
		}
		h.mu.Lock()
		c := h.conversion
		if c == nil && h.err == nil && h.next.Load() == nil {
			h.conversion = &conversion{}
		}
		h.mu.Unlock()
		switch {
		case c == nil:
			return nil
		case !c.inBackground:
			return Invalid("the lease of %q is being converted already", h.Name())
		case !waitFor(ctx, c.known()):
			return h.lock.fail(ErrNoAnswer, ctx.Err())
		}
	}
}

// resolveInBackground is called when Convert does not wait any longer to learn what has become of the conversion. It returns the
// lease that the caller is to have in the place of this one, if there is one; else this one stays. Known says whether it was
// learned.
func (h *Lease) resolveInBackground(d *Cleanup, t Terms) (instead *Lease, known bool) {
	e := h.lock.e
	heir := h
	if t.Direct {
		instead = h.weakerLease(d, t)
	}
	if instead != nil {
		heir = instead
	}
	h.mu.Lock()
	if h.conversion != nil {
		h.conversion.inBackground = true
	}
	h.mu.Unlock()
	if d.handTo(heir) {
		if instead != nil {
			instead.start()
		}
		return instead, false
	}
	if instead != nil {
		instead.forget()
	}
	if found := d.found; found != nil && h.Err() == nil && e.addLease(found) {
		found.start()
		return found, true
	} else if found != nil {
		found.abandon()
	}
	h.settle(nil, d.failure)
	return nil, true
}

// weakerLease is a lease that allows what the terms say, on whichever of two leases the server has: this one, or the one that was to
// come in its place. It returns nil if this one has ended.
func (h *Lease) weakerLease(d *Cleanup, t Terms) *Lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil
	}
	l := h.lock.newLease(h.token, int64(h.fence), h.deadline)
	l.request, l.adopted, l.use = h.request, h.adopted, t.Flags
	l.conversion = &conversion{undoing: d, inBackground: true}
	if !h.lock.e.addLease(l) {
		return nil
	}
	return l
}

// settle takes what has become of a conversion that was given up: the lease that it has led to, or why nobody knows.
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

// become goes on with another lease, which the server has in the place of this one. The holder has this one all the same: what
// it does with it, it does with the other, and this one ends with that.
func (h *Lease) become(next *Lease) {
	h.mu.Lock()
	h.conversion = nil
	if h.err != nil {
		h.mu.Unlock()
		next.abandon()
		return
	}
	next.former = &h.lifecycle
	h.next.Store(next)
	h.mu.Unlock()
	h.forget()
	if !next.lock.e.addLease(next) {
		next.abandon()
		return
	}
	next.start()
}

// handOver ends this lease, which has become the next one, and returns that for its holder to have.
func (h *Lease) handOver(next *Lease) *Lease {
	next.mu.Lock()
	next.former = nil
	next.mu.Unlock()
	h.lifecycle.end(ErrReleased)
	return next
}

// Became says whether the lease has become one for this use.
func (h *Lease) Became(use string) bool {
	next := h.next.Load()
	return next != nil && next.Is(use)
}

// current is the lease that the holder of this one has.
func (h *Lease) current() *Lease {
	for next := h.next.Load(); next != nil; next = h.next.Load() {
		h = next
	}
	return h
}

// setUndoing notes what finds out what has become of the conversion; nil: it is known that nothing has.
func (h *Lease) setUndoing(d *Cleanup) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conversion != nil {
		h.conversion.undoing = d
	}
}

func (h *Lease) undoing() *Cleanup {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conversion == nil {
		return nil
	}
	return h.conversion.undoing
}

func (h *Lease) isConverting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conversion != nil || h.next.Load() != nil
}

// endConversion notes that the conversion has not come about.
func (h *Lease) endConversion() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conversion = nil
	if h.err == nil && h.next.Load() == nil {
		if !h.lock.spec.NoRenewal {
			h.renewAt = time.Now() // the server may not know it any more
		}
		h.armLocked()
	}
}

// replaced ends a lease in whose place another one has come: there is nothing to give back.
func (h *Lease) replaced() {
	h.mu.Lock()
	h.conversion = nil
	if h.err != nil {
		h.mu.Unlock()
		return
	}
	cancel := h.endLocked(h.lock.fail(ErrReleased))
	h.mu.Unlock()
	cancel()
	h.forget()
	h.observe(Released, time.Since(h.grantedAt), nil)
}
