package engine

import (
	"context"
	"time"
)

// extension is what there is to know of a lease once Extend was called. It is guarded by the tenure's mu.
type extension struct {
	at    time.Time     // when one last set the deadline; answers to renewals that left before say nothing of it any more
	stray int64         // the least ms that one of unknown fate may yet cut the lease to; 0: there is none
	asks  int64         // ms that the one asks for that is under way; 0: none is
	over  chan struct{} // closed when that one ends
}

// Extend makes the lease end ttl from now, and renewals ask for ttl from now on. See Lease.Extend in package
// lockkeeper.
func (h *Hold) Extend(ctx context.Context, ttl time.Duration) error {
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
	if err := outlives(ttl, h.lock.spec.MaxLifetime, h.since); err != nil {
		return err
	}
	if err := h.extendsAlone(ctx); err != nil {
		return h.lock.fail(err)
	}
	defer h.extended()
	ms := millis(ttl)
	before := h.cutTo(ms)
	keys := renewsFacts
	if time.Until(before) > h.lock.trust(ms) {
		keys = renewsAndTells // whoever waits expects it to end later
	}
	r, err := h.lock.renew(ctx, h.token, ms, keys, true)
	if err == nil && !r.held {
		if h.isConverting() { // it may have been turned into another meanwhile
			return h.lock.fail(errUnsure)
		}
		h.lose(errNotHeld)
		return h.lock.fail(h.Err())
	}
	h.checkDeadline() // the answer may have come too late for it
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return h.lock.fail(h.err)
	}
	now := time.Now()
	x := h.extension
	if r.stray && (x.stray == 0 || ms < x.stray) {
		x.stray = ms
	}
	switch {
	case err != nil && r.stray: // it may run yet, or have run: from here on no more is believed than it leaves
		h.ttl = min(h.ttl, ms)
	case err != nil: // the server has never heard of it
		if before.After(h.deadline) {
			h.deadline = before
		}
	default:
		h.ttl, h.claim, h.kept = ms, false, now
		if x.stray > 0 {
			h.ttl = min(ms, x.stray)
		}
		h.deadline = r.sent.Add(h.lock.trust(h.ttl))
	}
	x.at = now
	if !h.lock.spec.Fixed {
		h.renewAt = h.lock.e.tick(now, h.deadline.Sub(now)/3)
	}
	h.setLocked()
	if err != nil {
		return h.lock.fail(err)
	}
	return nil
}

// outlives refuses to extend a lease beyond its maximum lifetime, if it has one.
func outlives(ttl, most time.Duration, since time.Time) error {
	if left := most - time.Since(since); most > 0 && ttl > left {
		return Invalid("ttl %v is more than the %v that are left of MaxLifetime %v", ttl, duration(millis(left)), most)
	}
	return nil
}

// renewFor makes renewals ask for so many ms, and one leave now.
func (h *Hold) renewFor(ms int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.ttl, h.renewAt = ms, time.Now()
		h.setLocked()
	}
}

// cutTo believes no more of the lease from now on than an Extend to so many ms leaves, which is about to be sent: it may have
// run long before its answer comes, and if it is repeated, before that. It returns what was believed until now.
func (h *Hold) cutTo(ms int64) (before time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.extension.asks, before = ms, h.deadline
	now := time.Now()
	if d := now.Add(h.lock.trust(ms)); h.err == nil && d.Before(before) {
		h.deadline = d
		if at := h.lock.e.tick(now, d.Sub(now)/3); !h.lock.spec.Fixed && at.Before(h.renewAt) {
			h.renewAt = at
		}
		h.setLocked()
	}
	return before
}

// sureLocked is how many of the ms that a renewal asked for are sure for the lease, if it left at that time.
func (h *Hold) sureLocked(sent time.Time, ms int64) int64 {
	x := h.extension
	switch {
	case x == nil:
		return ms
	case x.asks > 0: // one is under way, and may run after this
		return min(ms, x.asks)
	case !sent.After(x.at):
		return 0
	}
	return ms
}

// extendsAlone waits until no other Extend is under way. Of two at once nobody would know which the server had obeyed
// last.
func (h *Hold) extendsAlone(ctx context.Context) error {
	for {
		h.mu.Lock()
		if h.extension == nil {
			h.extension = &extension{}
		}
		before, err := h.extension.over, h.err
		if before == nil && err == nil {
			h.extension.over = make(chan struct{})
		}
		h.mu.Unlock()
		if before == nil || err != nil {
			return err
		}
		if !comes(ctx, before) {
			return chained(errSilence, ctx.Err())
		}
	}
}

// extended lets the next Extend go on.
func (h *Hold) extended() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.extension.over)
	h.extension.over, h.extension.asks = nil, 0
}
