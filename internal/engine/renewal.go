package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
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
	if h.err != nil || h.next.Load() != nil {
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
	full := now.Sub(h.metadataAt) > h.lock.e.cfg.MetadataTTL/2
	h.armLocked()
	h.mu.Unlock()
	keys := renewOnly
	if full {
		keys = renewMetadata
	}
	h.lock.e.transport.Send(h.lock.renewCall(h.token, ttl, keys, false, func(call *transport.Call) { h.renewed(call, ttl, full) }))
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

// renewed handles the reply to a renewal that asked for ttl.
func (h *Lease) renewed(call *transport.Call, ttl int64, full bool) {
	n, err := parseRenewal(call)
	now := time.Now()
	h.mu.Lock()
	h.inFlight--
	if h.inFlight == 0 && h.drained != nil {
		close(h.drained)
		h.drained = nil
	}
	if h.err != nil || h.next.Load() != nil {
		h.mu.Unlock()
		return
	}
	switch {
	case err == nil && n[0] == lua.Granted:
		if d := call.Sent.Add(h.lock.trusted(h.guaranteedLocked(call.Sent, ttl))); d.After(h.deadline) {
			h.deadline = d
		}
		h.backoff, h.renewErr, h.unconfirmed = nil, nil, false
		if full {
			h.metadataAt = now
		}
		h.renewAt = time.Time{}
		if !h.lock.spec.NoRenewal {
			h.renewAt = h.lock.e.renewalTime(now, min(duration(ttl), h.deadline.Sub(now))/3) // an Extend may have shortened it meanwhile
		}
		h.armLocked()
		h.mu.Unlock()
		h.observe(Renewed, now.Sub(h.grantedAt), nil)
	case err == nil && h.conversion != nil: // it may have been converted, with the reply still under way
		h.armLocked()
		h.mu.Unlock()
	case err == nil:
		h.mu.Unlock()
		h.lose(ErrNotHeld)
	case transport.WrongType(err):
		h.mu.Unlock()
		h.lose(err)
	default: // not lost yet: it is valid until its deadline, and renewed again before
		if h.backoff == nil {
			h.backoff = h.lock.e.cfg.Retry.NewBackoff()
		}
		h.renewErr = err
		if at := now.Add(h.backoff.NextBackOff()); h.renewAt.IsZero() || at.Before(h.renewAt) {
			h.renewAt = at
		}
		h.armLocked()
		h.mu.Unlock()
	}
}

// What a renewal does, by how many of the lock's keys it takes.
const (
	renewOnly      = 1 // the lease alone, which also works while a cluster migrates the slot
	renewMetadata  = 2 // also extends the metadata, and returns the fence
	renewAndNotify = 4 // also notifies the head of the queue of the new end
)

// renewCall prepares a renewal. An exact one may shorten the lease; others must not, since a copy may run late.
func (l *Lock) renewCall(token string, ttl int64, keys int, exact bool, done func(*transport.Call)) *transport.Call {
	call := l.call(l.spec.Scripts.Renew, keys, 6, done)
	call.Urgent = true
	call.Args = protocol.RenewArgs(call.Args, token, ttl, l.args.metadataTTL, boolArg(exact), l.args.channelPrefix, l.args.sharded)
	return call
}

// parseRenewal checks the reply to a renewal: refused, or granted with a fence.
func parseRenewal(call *transport.Call) (reply, error) {
	n, err := parseReply(call)
	if err != nil {
		return nil, err
	}
	switch n[0] {
	case lua.Granted:
		if err = n.checkLength(2); err == nil && n[1] < 0 {
			err = fmt.Errorf("%w: fence %d from renew", transport.ErrReply, n[1])
		}
	case lua.Refused:
		err = n.checkLength(1)
	default:
		err = fmt.Errorf("%w: code %d from renew", transport.ErrReply, n[0])
	}
	return n, err
}

// renewal is the result of a renewal that was waited for.
type renewal struct {
	sent    time.Time
	held    bool
	fence   int64
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
	call, inDoubt, err := l.e.roundTrip(ctx, l.e.closing.Done(), 0, func(done func(*transport.Call)) *transport.Call {
		return l.renewCall(token, ttl, keys, exact, done)
	})
	r.inDoubt = inDoubt
	if errors.Is(err, errStopped) {
		return r, ErrClosed
	}
	if err != nil {
		return r, err
	}
	r, err = parseFullRenewal(call)
	r.inDoubt = inDoubt
	return r, err
}

// parseFullRenewal checks the reply to a renewal that returns the fence.
func parseFullRenewal(call *transport.Call) (r renewal, err error) {
	n, err := parseRenewal(call)
	if err != nil {
		return r, err
	}
	r.sent, r.held = call.Sent, n[0] == lua.Granted
	if r.held {
		if r.fence = n[1]; r.fence == 0 {
			return r, fmt.Errorf("%w: no fence from a full renewal", transport.ErrReply)
		}
	}
	return r, nil
}
