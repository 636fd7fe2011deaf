package engine

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// renewalTime returns a time a little less than after from now, rounded so that leases granted one after the other are
// renewed together.
func (e *Engine) renewalTime(now time.Time, after time.Duration) time.Time {
	at := now.Add(after)
	if grid := after / 16; grid > 0 {
		at = at.Add(-(at.Sub(e.started) % grid))
	}
	return at
}

func (h *Lease) armLocked() {
	at := h.deadline
	if !h.renewAt.IsZero() && h.renewAt.Before(at) {
		at = h.renewAt
	}
	h.lock.e.timers.Set(&h.timer, at)
}

// onTimer runs when a renewal is due or the deadline has passed.
func (h *Lease) onTimer(now time.Time) {
	h.mu.Lock()
	if !h.state.active() {
		h.mu.Unlock()
		return
	}
	if !now.Before(h.deadline) {
		h.mu.Unlock()
		h.lose(nil)
		return
	}
	if h.renewAt.IsZero() || now.Before(h.renewAt) {
		h.armLocked()
		h.mu.Unlock()
		return
	}
	if h.retention.isUnusedLocked(now, duration(h.lock.ttl)) {
		h.renewAt = now.Add(duration(h.ttl) / 3) // unless it is given back by then
		h.armLocked()
		h.mu.Unlock()
		h.retention.giveBack(false)
		return
	}
	ttl := h.nextTTLLocked(now)
	if ttl == 0 {
		h.renewAt = time.Time{}
		h.armLocked()
		h.mu.Unlock()
		return
	}
	// If this renewal is not answered, others follow before the deadline, but never more than a few at once.
	h.renewAt = time.Time{}
	if h.inFlight++; h.inFlight < 4 {
		h.renewAt = now.Add(max(h.deadline.Sub(now)/3, duration(h.ttl)/30))
	}
	full := now.Sub(h.metadataAt) > h.lock.e.cfg.MetadataTTL/4
	h.armLocked()
	h.mu.Unlock()
	keys, ask := h.retention.renewal(full)
	full = keys >= renewMetadata
	epoch := h.retention.subscription()
	h.lock.e.announce()
	h.lock.e.transport.Send(h.lock.renewCall(h.token, ttl, keys, false, ask, func(call *transport.Call) {
		h.renewed(call, ttl, full, ask, epoch)
	}))
}

// nextTTLLocked returns the ms that a renewal now should ask for, or 0 if there should be none.
func (h *Lease) nextTTLLocked(now time.Time) int64 {
	ttl := h.ttl
	if x := h.extension; x != nil && x.requested > 0 {
		ttl = min(ttl, x.requested)
	}
	spec := h.lock.spec
	if spec.NoRenewal {
		ttl -= millis(now.Sub(h.grantedAt))
	}
	if spec.MaxLifetime > 0 {
		ttl = min(ttl, millis(spec.MaxLifetime-now.Sub(h.grantedAt)))
	}
	if duration(ttl) < ShortestTTL {
		return 0
	}
	return ttl
}

// renewNow makes a renewal leave now.
func (h *Lease) renewNow() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state.active() && !h.lock.spec.NoRenewal {
		h.renewAt = time.Now()
		h.armLocked()
	}
}

// renewed handles the reply to a renewal that asked for ttl, and whether the lease was recalled, if ask is set. epoch is that of the
// subscription when it was sent.
func (h *Lease) renewed(call *transport.Call, ttl int64, full, ask bool, epoch uint64) {
	parse := protocol.ParseRenewReply
	if ask {
		parse = protocol.ParseRetainedRenewReply
	}
	r, err := decode(call, parse)
	now := time.Now()
	h.mu.Lock()
	drained := h.answeredLocked()
	switch {
	case !h.state.active():
		h.mu.Unlock()
		if drained && h.owner != nil {
			h.owner.Observer.PartCleanedUp()
		}
	case h.renewErr == ErrNotHeld: // an earlier one was refused, and the server is asked why
		h.mu.Unlock()
	case err == nil && r.Held:
		h.prolongLocked(call.Sent, now, ttl, full)
		h.mu.Unlock()
		h.retention.renewed(h.grantedAt, epoch, ask, r.Recalled)
		h.lock.listen(h.token)
		h.observe(Renewed, now.Sub(h.grantedAt), nil)
	case err == nil && h.state == leaseConverting: // it may have been converted, with the reply still under way
		h.armLocked()
		h.mu.Unlock()
	case err == nil:
		h.mu.Unlock()
		h.refused()
	case transport.WrongType(err):
		h.mu.Unlock()
		h.lose(err)
	default:
		h.retryLocked(now, err)
		h.mu.Unlock()
		if ask && full && transport.SlotMigrates(err) {
			h.retention.giveBack(false) // from now on it is renewed with its own key alone
		}
	}
}

// answeredLocked notes that a renewal is not under way any more. It returns true if the lease has ended, and this was the last one.
func (h *Lease) answeredLocked() (drained bool) {
	h.inFlight--
	if h.inFlight > 0 || h.drained == nil {
		return false
	}
	close(h.drained)
	h.drained = nil
	return true
}

// prolongLocked notes that the server has granted a renewal that was sent at that time and asked for ttl.
func (h *Lease) prolongLocked(sent, now time.Time, ttl int64, full bool) {
	if d := LeaseUntil(sent, h.guaranteedLocked(sent, ttl)); d.After(h.deadline) {
		h.setDeadlineLocked(d)
	}
	h.backoff, h.renewErr = nil, nil
	h.confirmLocked()
	if full {
		h.metadataAt = now
	}
	h.renewAt = time.Time{}
	if !h.lock.spec.NoRenewal {
		h.renewAt = h.lock.e.renewalTime(now, min(duration(ttl), h.deadline.Sub(now))/3) // an Extend may have shortened it meanwhile
	}
	h.armLocked()
}

// retryLocked notes that a renewal has failed. The lease is not lost yet: it is valid until its deadline, and renewed again before.
func (h *Lease) retryLocked(now time.Time, err error) {
	if h.backoff == nil {
		h.backoff = h.lock.e.cfg.Retry.NewBackoff()
	}
	h.renewErr = err
	if at := now.Add(h.backoff.NextBackOff()); h.renewAt.IsZero() || at.Before(h.renewAt) {
		h.renewAt = at
	}
	h.armLocked()
}

// confirmLocked notes that the server has renewed the lease.
func (h *Lease) confirmLocked() {
	if h.state == leaseUnconfirmed {
		h.state = leaseHeld
	}
}

// renewal is the result of a renewal that was waited for.
type renewal struct {
	protocol.RenewReply
	sent    time.Time
	inDoubt bool // a copy of the call may still run
}

// renew renews a lease and the metadata. It blocks until that is answered, and repeats it while it fails for a transient
// reason.
func (l *Lock) renew(ctx context.Context, token string, ttl int64, keys int, exact bool) (r renewal, err error) {
	if err := ctx.Err(); err != nil {
		return r, err
	}
	if l.e.closing.Err() != nil {
		return r, ErrClosed
	}
	call, inDoubt, err := l.e.roundTrip(ctx, l.e.closing.Done, 0, func(p *pending) {
		l.setRenewal(&p.Call, token, ttl, keys, exact, false)
	})
	r.inDoubt = inDoubt
	if errors.Is(err, errStopped) {
		return r, ErrClosed
	}
	if err != nil {
		return r, err
	}
	r.sent = call.Sent
	r.RenewReply, err = decode(call, protocol.ParseRenewReplyWithFence)
	return r, err
}
