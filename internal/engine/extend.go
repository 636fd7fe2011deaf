package engine

import (
	"context"
	"time"
)

// extension is what there is to know of a lease once Extend was called. It is guarded by the tenure's mu.
type extension struct {
	at        time.Time     // when one last set the deadline; answers to renewals that left before say nothing of it any more
	inDoubt   int64         // the least ms that one of unknown fate may yet cut the lease to; 0: there is none
	requested int64         // ms that the one asks for that is under way; 0: none is
	done      chan struct{} // closed when that one ends
}

// Extend makes the lease end ttl from now, and renewals ask for ttl from now on. See Lease.Extend in package
// lockkeeper.
func (h *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	if next := h.next.Load(); next != nil {
		return next.Extend(ctx, ttl)
	}
	if h.receipt {
		return Invalid("the permits of %q return by the clock: there is nothing to extend", h.Name())
	}
	if err := CheckTTL("ttl", ttl); err != nil {
		return err
	}
	if err := h.Err(); err != nil {
		return h.lock.fail(err)
	}
	if err := CheckLifetime(ttl, h.lock.spec.MaxLifetime, h.grantedAt); err != nil {
		return err
	}
	if err := h.beginExtension(ctx); err != nil {
		return h.lock.fail(err)
	}
	defer h.endExtension()
	ms := millis(ttl)
	before := h.lowerDeadline(ms)
	keys := renewMetadata
	if time.Until(before) > h.lock.trusted(ms) {
		keys = renewAndNotify // whoever waits expects it to end later
	}
	r, err := h.lock.renew(ctx, h.token, ms, keys, true)
	if err == nil && !r.held {
		if h.isConverting() { // it may have been turned into another meanwhile
			return h.lock.fail(errUnsure)
		}
		h.lose(ErrNotHeld)
		return h.lock.fail(h.Err())
	}
	h.CheckDeadline() // the answer may have come too late for it
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return h.lock.fail(h.err)
	}
	now := time.Now()
	x := h.extension
	if r.inDoubt && (x.inDoubt == 0 || ms < x.inDoubt) {
		x.inDoubt = ms
	}
	switch {
	case err != nil && r.inDoubt: // it may run yet, or have run: from here on no more is believed than it leaves
		h.ttl = min(h.ttl, ms)
	case err != nil: // the server has never heard of it
		if before.After(h.deadline) {
			h.deadline = before
		}
	default:
		h.ttl, h.unconfirmed, h.metadataAt = ms, false, now
		if x.inDoubt > 0 {
			h.ttl = min(ms, x.inDoubt)
		}
		h.deadline = r.sent.Add(h.lock.trusted(h.ttl))
	}
	x.at = now
	if !h.lock.spec.NoRenewal {
		h.renewAt = h.lock.e.renewalTime(now, h.deadline.Sub(now)/3)
	}
	h.armLocked()
	if err != nil {
		return h.lock.fail(err)
	}
	return nil
}

// CheckLifetime returns ErrInvalid if a lease held since that time may not be extended to ttl from now. Most 0 means that its
// lifetime is not limited.
func CheckLifetime(ttl, most time.Duration, since time.Time) error {
	if left := most - time.Since(since); most > 0 && ttl > left {
		return Invalid("ttl %v is more than the %v that are left of MaxLifetime %v", ttl, duration(millis(left)), most)
	}
	return nil
}

// setTTL makes renewals ask for so many ms, and one leave now.
func (h *Lease) setTTL(ms int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.ttl, h.renewAt = ms, time.Now()
		h.armLocked()
	}
}

// lowerDeadline believes no more of the lease from now on than an Extend to so many ms leaves, which is about to be sent: it may have
// run long before its answer comes, and if it is repeated, before that. It returns what was believed until now.
func (h *Lease) lowerDeadline(ms int64) (before time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.extension.requested, before = ms, h.deadline
	now := time.Now()
	if d := now.Add(h.lock.trusted(ms)); h.err == nil && d.Before(before) {
		h.deadline = d
		if at := h.lock.e.renewalTime(now, d.Sub(now)/3); !h.lock.spec.NoRenewal && at.Before(h.renewAt) {
			h.renewAt = at
		}
		h.armLocked()
	}
	return before
}

// guaranteedLocked is how many of the ms that a renewal asked for are sure for the lease, if it left at that time.
func (h *Lease) guaranteedLocked(sent time.Time, ms int64) int64 {
	x := h.extension
	switch {
	case x == nil:
		return ms
	case x.requested > 0: // one is under way, and may run after this
		return min(ms, x.requested)
	case !sent.After(x.at):
		return 0
	}
	return ms
}

// beginExtension waits until no other Extend is under way. Of two at once nobody would know which the server had obeyed
// last.
func (h *Lease) beginExtension(ctx context.Context) error {
	for {
		h.mu.Lock()
		if h.extension == nil {
			h.extension = &extension{}
		}
		before, err := h.extension.done, h.err
		if before == nil && err == nil {
			h.extension.done = make(chan struct{})
		}
		h.mu.Unlock()
		if before == nil || err != nil {
			return err
		}
		if !waitFor(ctx, before) {
			return Chain(ErrNoAnswer, ctx.Err())
		}
	}
}

// endExtension lets the next Extend go on.
func (h *Lease) endExtension() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.extension.done)
	h.extension.done, h.extension.requested = nil, 0
}
