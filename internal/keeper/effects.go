package keeper

import (
	"errors"
	"log/slog"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// actions are what is done after a step of a claim. begin does what nobody may see apart from the step, under the lease's Mu, and finish the
// rest, without Mu.
type actions struct {
	claim.Effects
	event       claim.Kind
	request     *request        // of the lease; nil: it has none any more
	ask         *transport.Call // to be sent
	endContexts func()          // cancels the contexts of a lease that has ended
	err         error           // with which the lease has ended
	cleanup     *Cleanup        // to be sent, or has ended
	leased      bool            // the request was granted a lease
	pending     bool            // the request had not ended before the step
	unwanted    bool            // the keeper was closed meanwhile
}

// completeLocked adds to an event what the lease and its request know, and notes the error of a call that has failed.
func (h *Lease) completeLocked(ev *claim.Event, cause error) {
	switch ev.Kind {
	case claim.RenewFailed:
		ev.Pause = h.pauseLocked()
		h.failed.last = cause
	case claim.ReleaseFailed:
		// An attempt that was interrupted, because ctx has ended or the keeper is closed, says nothing about the server: the next one is sent
		// at once.
		if !errors.Is(cause, transport.ErrInterrupted) {
			ev.Pause, ev.Last = h.lock.k.RetryPause(h.pauseLocked())
		}
		h.cleanup.failure = cause
	}
	if r := h.request; r != nil {
		switch ev.Kind {
		case claim.Replied:
			r.call = nil
			if h.failed != nil {
				h.failed.last = nil
			}
		case claim.AskFailed:
			r.call, h.failuresLocked().last = nil, cause
		case claim.Cancelled, claim.Closed, claim.Broken, claim.NotBroken:
			ev.Withdrawn = r.withdrawLocked()
		}
	}
}

// begin steps the claim, and does what must be done under Mu, which the caller holds.
func (a *actions) begin(h *Lease, now claim.Instant, ev *claim.Event, cause error) {
	l, k := h.lock, h.lock.k
	h.completeLocked(ev, cause)
	a.event, a.request, a.pending = ev.Kind, h.request, h.Claim.Pending()
	h.Claim.Step(&l.Rules, now, ev, &a.Effects)
	if a.Explained {
		h.cleanup.loss = cause
	}
	if a.Confirmed {
		h.failed = nil
	}
	if a.Ask {
		a.ask = &h.request.newCallLocked(a.AskGeneral).Call
	}
	if a.Queue {
		k.queues.join(h.request)
	}
	if a.Deliver {
		a.deliver(h, cause)
	}
	if a.End {
		a.err = h.endErrorLocked(cause)
		a.endContexts = h.EndLocked(a.err)
	}
	if a.Release && h.cleanup == nil {
		k.BeginWork(true) // Close waits for it
		h.cleanup = &Cleanup{of: h}
	}
	if a.Release || a.Finished {
		a.cleanup = h.cleanup
	}
	switch {
	case a.Pause:
		k.Timers.Set(&h.timer, time.Now().Add(h.pauseLocked()))
	case a.Timer > 0:
		k.Timers.Set(&h.timer, k.Time(a.Timer))
	case a.StopTimer:
		k.Timers.Cancel(&h.timer)
	}
}

// deliver notes how the request has ended. The caller holds Mu.
func (a *actions) deliver(h *Lease, cause error) {
	granted := h.Claim.Active() || h.Claim.State() == claim.Permitted
	if granted {
		h.fence.Store(uint64(h.Claim.Fence()))
		a.leased = h.Claim.Active()
		a.unwanted = a.leased && !h.lock.k.leases.add(h) || !a.leased && h.lock.k.IsClosed()
	}
	a.request.deliverLocked(granted, a.unwanted, cause)
}

// delivered unblocks the caller of the request.
func (a *actions) delivered(h *Lease) {
	final := a.request.delivered(a.WakeupHeard)
	if a.leased && !h.lock.k.listens.Load() {
		h.lock.listen(h.token)
	}
	if a.unwanted {
		h.Abandon()
	}
	h.Mu.Lock()
	if final && !h.Claim.InDoubt() {
		h.request = nil // no late reply comes
	}
	h.Mu.Unlock()
}

// finish does what must be done without Mu: it calls others, and sends.
func (a *actions) finish(h *Lease, by func(*transport.Call)) {
	l := h.lock
	if a.Impossible {
		l.LogBug(h.token, h.Snapshot().State().String(), a.event.String())
	}
	if a.endContexts != nil {
		a.endContexts()
		h.lock.k.leases.remove(h)
	}
	if a.Deliver {
		a.delivered(h)
	}
	if a.Queue {
		a.request.reportQueued()
	}
	if a.HeartbeatBy > 0 {
		l.k.queues.heartbeatsBy(a.request, a.HeartbeatBy)
	}
	if a.FirstBeatBy > 0 {
		l.k.queues.firstBeatBy(a.request, a.FirstBeatBy)
	}
	switch {
	case !a.AskBreaker:
	case a.pending:
		l.askBreaker(h.token, h.breakerKnown)
	default:
		if h.observer != nil {
			h.observer.LeaseEvent(Refused)
		}
		l.gone(h.token, h.breakerKnown)
	}
	if a.RenewFor > 0 {
		h.renew(a.RenewFor, a.Metadata)
	}
	if a.ask != nil {
		by(a.ask)
	}
	if a.Release {
		a.cleanup.send(by)
	}
	if a.End && a.err != nil {
		h.observeEnd(a)
	}
	if a.cleanup != nil && a.Finished {
		a.cleanup.end()
	}
}

// LogBug logs that an event has come that cannot come in that state, unless another one was logged lately.
func (l *Lock) LogBug(token, state, event string) {
	l.k.bugs.Log(l.k.Config.Log, slog.LevelError, "lockkeeper: an event came that cannot come in this state; this is a bug, please report it",
		"kind", l.Kind(), "name", l.Name(), "token", token, "state", state, "event", event)
}

// observeEnd reports that the lease has ended for its holder. If no caller ever got the lease, its Observation drops the event.
func (h *Lease) observeEnd(a *actions) {
	what, err := Lost, a.err
	if reason := h.Snapshot().Reason(); reason == claim.ByRelease || reason == claim.ByForgetting {
		what, err = Released, nil
	}
	h.observe(what, err)
}

// pauseLocked returns the pause before the next attempt of a call that is repeated.
func (h *Lease) pauseLocked() time.Duration {
	return h.lock.k.Config.Retry.Next(&h.failuresLocked().backoff)
}

// breakerKnown handles the answer to AskBreaker: b has broken the request or lease; nil: nobody, as far as is known.
func (h *Lease) breakerKnown(b *protocol.Breaker) {
	if b == nil {
		h.Step(claim.Event{Kind: claim.NotBroken}, nil)
	} else {
		h.Broken(*b)
	}
}
