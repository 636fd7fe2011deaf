package engine

import (
	"context"
	"errors"
	"time"
)

// extension is the state of a lease on which Extend was called. It is guarded by the lifecycle's mu.
type extension struct {
	at        time.Time     // when Extend last set the deadline; answers to renewals sent before are ignored
	inDoubt   int64         // the shortest ttl, in ms, of calls whose outcome is unknown: one may still run; 0: none
	requested int64         // the ttl, in ms, of the call in progress; 0: none
	done      chan struct{} // closed when the call in progress ends
}

// Extend makes the lease expire ttl from now, and renewals request ttl from now on. See Lease.Extend in package
// lockkeeper.
func (h *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	return h.extend(ctx, ttl, func() error { return nil })
}

// extend is Extend, and does nothing if check, which it calls when no other Extend is in progress, returns an error.
func (h *Lease) extend(ctx context.Context, ttl time.Duration, check func() error) error {
	for {
		err := h.tryExtend(ctx, ttl, check)
		if err != errConverting {
			return err
		}
		if !h.awaitConversion(ctx) {
			return h.lock.fail(ErrNoAnswer, ctx.Err())
		}
	}
}

// errConverting is the error of tryExtend if the server does not know the token while the lease is being converted: it may know that of
// the lease that replaces this one, whose reply is still under way.
var errConverting = errors.New("the lease is being converted")

// tryExtend is extend without waiting for a conversion.
func (h *Lease) tryExtend(ctx context.Context, ttl time.Duration, check func() error) error {
	if next := h.next.Load(); next != nil {
		return next.extend(ctx, ttl, check)
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
	if err := check(); err != nil {
		return err
	}
	ms := millis(ttl)
	before := h.lowerDeadline(ms)
	keys := renewMetadata
	if time.Until(before) > h.lock.trusted(ms) {
		keys = renewAndNotify // waiters expect it to end later
	}
	r, err := h.lock.renew(ctx, h.token, ms, keys, true)
	if err == nil && !r.Held {
		if h.isConverting() {
			return errConverting
		}
		h.loseRefused()
		return h.lock.fail(h.Err())
	}
	h.CheckDeadline() // the answer may have arrived after the deadline
	return h.extended(ms, before, r, err)
}

// extended sets the deadline and the ttl after an Extend to ms ended, with a renewal or an error. before is the deadline that
// lowerDeadline returned.
func (h *Lease) extended(ms int64, before time.Time, r renewal, err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state.ended() {
		return h.lock.fail(h.err)
	}
	now := time.Now()
	x := h.extension
	if r.inDoubt && (x.inDoubt == 0 || ms < x.inDoubt) {
		x.inDoubt = ms
	}
	switch {
	case err != nil && r.inDoubt: // it may have run or may still run: trust only the shorter of both ttls
		h.ttl = min(h.ttl, ms)
	case err != nil: // the server did not receive it
		if before.After(h.deadline) {
			h.setDeadlineLocked(before)
		}
	default:
		h.ttl, h.metadataAt = ms, now
		h.confirmLocked()
		if x.inDoubt > 0 {
			h.ttl = min(ms, x.inDoubt)
		}
		h.setDeadlineLocked(LeaseUntil(r.sent, h.ttl))
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

// CheckLifetime returns ErrInvalid if a lease held since that time may not be extended to ttl from now. If maxLifetime is 0,
// the lifetime is not limited.
func CheckLifetime(ttl, maxLifetime time.Duration, since time.Time) error {
	if left := maxLifetime - time.Since(since); maxLifetime > 0 && ttl > left {
		return Invalid("ttl %v exceeds the %v that are left of MaxLifetime %v; extend by less, or set a longer MaxLifetime", ttl, duration(millis(left)), maxLifetime)
	}
	return nil
}

// renewalTTL returns the ttl that renewals ask for.
func (h *Lease) renewalTTL() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return duration(h.ttl)
}

// setTTL makes renewals ask for so many ms, and one leave now.
func (h *Lease) setTTL(ms int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.state.ended() {
		h.ttl, h.renewAt = ms, time.Now()
		h.armLocked()
	}
}

// lowerDeadline limits the deadline to what an Extend to ms, which is about to be sent, will leave. The server may run it
// long before its answer arrives. lowerDeadline returns the previous deadline.
func (h *Lease) lowerDeadline(ms int64) (before time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.extension.requested, before = ms, h.deadline
	now := time.Now()
	if d := now.Add(h.lock.trusted(ms)); !h.state.ended() && d.Before(before) {
		h.setDeadlineLocked(d)
		if at := h.lock.e.renewalTime(now, d.Sub(now)/3); !h.lock.spec.NoRenewal && at.Before(h.renewAt) {
			h.renewAt = at
		}
		h.armLocked()
	}
	return before
}

// guaranteedLocked returns for how many ms a renewal that was sent at that time and requested ms is sure to keep the lease.
func (h *Lease) guaranteedLocked(sent time.Time, ms int64) int64 {
	x := h.extension
	switch {
	case x == nil:
		return ms
	case x.requested > 0: // an Extend is in progress and may run after the renewal
		return min(ms, x.requested)
	case !sent.After(x.at):
		return 0
	}
	return ms
}

// beginExtension waits until no other Extend of the lease is in progress. If two ran at once, it would not be known which
// one the server ran last.
func (h *Lease) beginExtension(ctx context.Context) error {
	for {
		h.mu.Lock()
		if h.extension == nil {
			h.extension = &extension{}
		}
		inProgress, err := h.extension.done, h.err
		if inProgress == nil && err == nil {
			h.extension.done = make(chan struct{})
		}
		h.mu.Unlock()
		if inProgress == nil || err != nil {
			return err
		}
		if !waitFor(ctx, inProgress) {
			return Chain(ErrNoAnswer, ctx.Err())
		}
	}
}

// endExtension lets the next Extend start.
func (h *Lease) endExtension() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.extension.done)
	h.extension.done, h.extension.requested = nil, 0
}
