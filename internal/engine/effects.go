package engine

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// actions are what the driver does after a step of a claim: at first what must not be seen apart from it, with the lease's mu locked, and
// then the rest.
type actions struct {
	claim.Effects
	request     *request // of the lease; nil: it has none any more
	ask         *askCall // to be sent
	endContexts func()
	err         error // with which the lease has ended
	held        time.Duration
	cleanup     *Cleanup               // to be sent, or has ended
	leased      bool                   // the request was granted a lease
	pending     bool                   // the request had not ended before
	unwanted    bool                   // the keeper was closed meanwhile
	queued      *protocol.AcquireReply // the reply that has queued the request
}

// begin steps the claim. The caller holds mu.
func (a *actions) begin(h *Lease, now claim.Instant, ev *claim.Event, cause error) {
	l, e := h.lock, h.lock.e
	if r := h.request; r != nil && r.call != nil {
		switch ev.Kind {
		case claim.Replied, claim.AskFailed:
			r.call = nil
		case claim.Cancelled, claim.Closed, claim.Broken, claim.NotBroken, claim.Forgotten:
			ev.Withdrawn = r.call.Withdraw()
			r.call = nil
		}
	}
	a.request, a.pending = h.request, h.claim.Pending()
	before := h.claim.Deadline()
	h.claim.Step(&l.rules, now, ev, &a.Effects)
	if x := h.sharing(); x != nil {
		if d := h.claim.Deadline(); d != before {
			x.SetDeadline(e.Time(d))
		}
		if a.StopSharing {
			x.End()
		}
	}
	if ev.Kind == claim.RenewFailed {
		h.lastErr = cause
	}
	if a.Explained {
		h.cleanup.loss = cause
	}
	if a.Confirmed {
		h.lastErr, h.backoff = nil, nil
	}
	if a.Ask {
		a.ask = h.request.newCallLocked(a.AskLong)
	}
	if a.Queue {
		r, reply := h.request, a.queued
		r.health = e.queues.Join(r, &l.Lock, r.health, h.claim.Asked(), reply.RetryIn, reply.More)
	}
	if a.Deliver {
		a.request.deliverLocked(a, cause)
	}
	if a.End {
		a.held, a.err = now.Sub(h.claim.Since()), h.endErrorLocked(cause)
		a.endContexts = h.endLocked(a.err)
	}
	if a.Release && h.cleanup == nil {
		h.cleanup = h.newCleanup()
		if h.request != nil && h.request.origin != nil && h.ErrLocked() == nil {
			h.request.origin.setUndoing(h.cleanup)
		}
	}
	if a.Release || a.Check || a.Found || a.Finished {
		a.cleanup = h.cleanup
	}
	switch {
	case a.Pause:
		e.Timers.Set(&h.timer, time.Now().Add(h.pauseLocked()))
	case a.Timer > 0:
		e.Timers.Set(&h.timer, e.Time(a.Timer))
	case a.StopTimer:
		e.Timers.Cancel(&h.timer)
	}
}

// finish does what is to be done without mu.
func (a *actions) finish(h *Lease, by func(*transport.Call)) {
	l, e := h.lock, h.lock.e
	if a.endContexts != nil {
		a.endContexts()
		h.forget()
	}
	if a.Deliver {
		a.request.delivered(a)
	}
	if a.queued != nil && a.Queue {
		a.request.ReportPosition(a.queued.Rank)
	}
	if a.HeartbeatBy > 0 {
		e.queues.HeartbeatsBy(a.request, &l.Lock, a.HeartbeatBy)
	}
	if a.FirstBeatBy > 0 {
		e.queues.FirstBeatBy(a.request, &l.Lock, a.FirstBeatBy)
	}
	switch {
	case !a.AskBreaker:
	case a.pending:
		l.askBreaker(h.token, h.breakerKnown)
	default:
		l.gone(h.token, h.breakerKnown)
	}
	if a.GiveBack {
		h.sharing().GiveBack()
	}
	if a.RenewFor > 0 {
		h.renew(a.RenewFor, a.Metadata)
	}
	if a.ask != nil {
		by(&a.ask.Call)
	}
	if a.Release || a.Check {
		a.cleanup.send(by, a.Check)
	}
	if a.End && a.err != nil {
		h.observeEnd(a.err, a.held)
	}
	if a.cleanup != nil && (a.Found || a.Finished) {
		a.cleanup.end(a.Found)
	}
}

// observeEnd reports that the lease has ended for its holder.
func (h *Lease) observeEnd(err error, held time.Duration) {
	if h.claimReason() == claim.ByRelease || h.claimReason() == claim.ByReplacement {
		h.observe(Released, held, nil)
	} else {
		h.observe(Lost, held, err)
	}
}

func (h *Lease) claimReason() claim.Reason {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.claim.Reason()
}

// pauseLocked returns the pause before the next attempt of what is being repeated.
func (h *Lease) pauseLocked() time.Duration {
	if h.backoff == nil {
		h.backoff = h.lock.e.Config.Retry.NewBackoff()
	}
	return h.backoff.NextBackOff()
}

// pause is pauseLocked.
func (h *Lease) pause() time.Duration {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.pauseLocked()
}

// breakerKnown handles the answer who has broken what the token had; nil: nobody, as far as is known.
func (h *Lease) breakerKnown(b *protocol.Breaker) {
	if b == nil {
		h.step(claim.Event{Kind: claim.NotBroken}, nil)
	} else {
		h.broken(*b)
	}
}
