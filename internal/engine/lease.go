package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// Lease is a claim, and what this process has for it: the caller that waits for it, its timer, the contexts of its holder, and what
// releases it. It exists from the request on; who does not belong to this package gets it when it is granted. It is safe for concurrent use.
type Lease struct {
	lifecycle.Lifecycle
	lock        *Lock
	token       string
	serial      string       // by which messages name it
	request     *request     // until it is granted, and then if a late reply may come; nil: adopted, or made to clean up
	observer    Observer     // gets its events; nil: the keeper's hooks alone
	use         string       // its use, if that is not what its token says; see Convert
	observation *Observation // the call that acquired it, for the observer
	fence       uint64       // once it is granted
	timer       timers.Timer

	// Guarded by the Lifecycle's Mu. A process may have a hundred thousand leases, so what few have is behind pointers.
	claim      claim.Claim
	extending  chan struct{}               // while an Extend is in progress; closed when it ends
	converting *conversion                 // while it is being converted, and after it ended meanwhile
	next       atomic.Pointer[Lease]       // the lease that continues this one; see become
	former     *Lease                      // the lease that this one continues, which the holder still uses and which ends with it
	backoff    *backoff.ExponentialBackOff // of what is repeated now; nil while it succeeds
	lastErr    error                       // of the last renewal
	cleanup    *Cleanup                    // once it is released
}

// Reasons for a loss, in addition to ErrNotHeld.
var (
	errDeadline = server.NewLoss(server.LossExpired, "it was not renewed in time")
	errLifetime = server.NewLoss(server.LossMaxLifetime, "it has reached its maximum lifetime")
	errFixed    = server.NewLoss(server.LossNotRenewed, "its time is over and it is not renewed")
)

func (l *Lock) newLease(token, serial string, c claim.Claim, o *Observation) *Lease {
	h := &Lease{lock: l, token: token, serial: serial, claim: c, observation: o}
	h.Begin(h)
	h.timer.Handler = (*leaseTimer)(h)
	return h
}

// leaseTimer is a Lease as the handler of its timer.
type leaseTimer Lease

// Fire implements timers.Handler.
func (t *leaseTimer) Fire(now time.Time) { (*Lease)(t).onTimer(now) }

func (h *Lease) onTimer(now time.Time) {
	h.Mu.Lock()
	at := h.lock.e.Instant(now)
	unused := h.claim.RenewalDue(at) && h.isUnused(at)
	h.Mu.Unlock()
	h.stepAt(at, claim.Event{Kind: claim.Timer, Unused: unused}, nil, h.lock.e.Transport.Send)
}

// arm sets the timer of a lease that was not granted by a step.
func (h *Lease) arm(at claim.Instant) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.claim.Active() {
		h.lock.e.Timers.Set(&h.timer, h.lock.e.Time(at))
	}
}

// step tells the claim of an event, and does what it says. cause is the error that belongs to the event, if there is one.
func (h *Lease) step(ev claim.Event, cause error) claim.Effects {
	return h.stepAt(h.lock.e.Now(), ev, cause, h.lock.e.Transport.Send)
}

// stepAt is step at a certain time; what is sent is sent by Transport.Send or SendInline.
func (h *Lease) stepAt(now claim.Instant, ev claim.Event, cause error, by func(*transport.Call)) claim.Effects {
	h.Mu.Lock()
	var a actions
	a.begin(h, now, &ev, cause)
	h.Mu.Unlock()
	a.finish(h, by)
	return a.Effects
}

// addLease registers a lease that was granted. It reports false after Close.
func (e *Engine) addLease(h *Lease) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.leases[h] = struct{}{}
	return true
}

// forget unregisters a lease that has ended for its holder.
func (h *Lease) forget() {
	e := h.lock.e
	e.mu.Lock()
	delete(e.leases, h)
	e.mu.Unlock()
}

// endErrorLocked returns the error with which the lease has ended for its holder. cause is that of the event that has ended it.
func (h *Lease) endErrorLocked(cause error) error {
	switch reason := h.claim.Reason(); reason {
	case claim.ByRelease, claim.ByReplacement:
		return h.lock.ReleasedError()
	case claim.ByServer:
		cause = ErrNotHeld
	case claim.ByFixedTTL:
		cause = errFixed
	case claim.ByLifetime:
		cause = errLifetime
	case claim.ByDeadline:
		cause = errDeadline
		if h.lastErr != nil {
			cause = fmt.Errorf("%w: %w", errDeadline, h.lastErr)
		}
	}
	return h.lock.Fail(server.ErrLost, cause)
}

// lose ends the lease as lost, if it has not ended.
func (h *Lease) lose(reason error) {
	if next := h.next.Load(); next != nil {
		next.lose(reason)
		return
	}
	h.step(claim.Event{Kind: claim.Failed}, reason)
}

// endAs ends the lease for its holder, unless it has ended, and does nothing else.
func (h *Lease) endAs(err error) {
	h.Mu.Lock()
	cancel := func() {}
	if h.ErrLocked() == nil {
		cancel = h.endLocked(err)
	}
	h.Mu.Unlock()
	cancel()
}

// endLocked ends the lease for its holder, and the one that it continues, and returns a function that cancels the contexts; see
// Lifecycle.EndLocked.
func (h *Lease) endLocked(err error) (cancel func()) {
	endContexts, former, x := h.EndLocked(err), h.former, h.sharing()
	if former == nil && x == nil {
		return endContexts
	}
	if x != nil {
		x.End()
	}
	return func() {
		if former != nil {
			former.endAs(err)
		}
		endContexts()
		if x != nil {
			x.Ended(err)
		}
	}
}

func (h *Lease) observe(what EventType, took time.Duration, err error) {
	if h.observer != nil && h.observer.LeaseEvent(what) || h.lock.e.cfg.Observe == nil {
		return
	}
	ev := h.lock.Event(what, h.observation)
	ev.Token, ev.Fence, ev.Duration, ev.Err = h.token, h.fence, took, err
	h.lock.e.observe(ev)
}

// held returns for how long the lease has been held.
func (h *Lease) held() time.Duration { return time.Since(h.Since()) }

// release ends the lease and starts its cleanup, which it returns; by sends the command. unused says that nobody ever had the
// lease. The error is ErrLost if the lease was lost; if there is nothing to clean up, both are nil.
func (h *Lease) release(by func(*transport.Call), unused bool) (*Cleanup, error) {
	return h.end(by, unused, time.Time{})
}

// end is release, or Complete if record is set.
func (h *Lease) end(by func(*transport.Call), unused bool, record time.Time) (*Cleanup, error) {
	if next := h.next.Load(); next != nil {
		return next.end(by, unused, record)
	}
	ev := claim.Event{Kind: claim.Released, Unused: unused}
	if !record.IsZero() {
		ev.Until = max(h.lock.e.Instant(record), 1)
	}
	h.Mu.Lock()
	if h.next.Load() != nil {
		h.Mu.Unlock()
		return h.end(by, unused, record)
	}
	var a actions
	first := h.cleanup == nil
	a.begin(h, h.lock.e.Now(), &ev, nil)
	c, err := h.cleanup, h.ErrLocked()
	h.Mu.Unlock()
	a.finish(h, by)
	switch {
	case errors.Is(err, server.ErrLost):
		return nil, h.lock.Fail(err)
	case !first || c == nil:
		return nil, nil
	}
	return c, nil
}

// Release releases the lease. See Lease.Release in package lockkeeper.
func (h *Lease) Release(ctx context.Context) error {
	if next := h.next.Load(); next != nil {
		return next.Release(ctx)
	}
	by := h.lock.e.Transport.Send
	if ctx.Done() == nil {
		by = h.lock.e.Transport.SendInline // the caller cannot be cancelled
	}
	c, err := h.release(by, false)
	if c == nil {
		return err
	}
	return h.await(ctx, c, ErrReleaseUnanswered)
}

// await returns when the cleanup has ended and no renewal is under way, when ctx ends, or when Close waits no longer; if ctx has ended
// already, after cancelGrace at most. The error is silence if there was no reply.
func (h *Lease) await(ctx context.Context, c *Cleanup, silence error) error {
	h.Mu.Lock()
	resolved := h.converting.resolved()
	h.Mu.Unlock()
	if c.Ended() && resolved == nil {
		return c.err()
	}
	var timeout <-chan time.Time
	done := ctx.Done()
	if ctx.Err() != nil {
		grace := time.NewTimer(cancelGrace)
		defer grace.Stop()
		timeout, done = grace.C, nil
	}
	closing := h.lock.e.Closing().Done()
	for _, ended := range []<-chan struct{}{c.finished.Done(), resolved} {
		for waiting := ended != nil; waiting; {
			select {
			case <-ended:
				waiting = false
			case <-done:
				return h.lock.Fail(silence, ctx.Err())
			case <-timeout:
				return h.lock.Fail(silence, ctx.Err())
			case <-closing:
				closing = nil
				if timeout == nil {
					limit := time.NewTimer(h.lock.e.UntilClosed())
					defer limit.Stop()
					timeout = limit.C
				}
			}
		}
	}
	return c.err()
}

// inDoubt reports whether a copy of the request for this lease may still run after its release.
func (h *Lease) inDoubt() bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.claim.InDoubt()
}

// currentCleanup returns the cleanup of the lease, or nil.
func (h *Lease) currentCleanup() *Cleanup {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.cleanup
}

// abandon releases the lease in the background: its caller has returned.
func (h *Lease) abandon() { _, _ = h.release(h.lock.e.Transport.Send, true) }

// CheckDeadline ends the lease as lost if its deadline has passed and its timer has not fired yet, for example because the
// process was frozen.
func (h *Lease) CheckDeadline() {
	if next := h.next.Load(); next != nil {
		if err := next.Err(); err != nil {
			h.endAs(err) // it ended before this one was updated
		}
		return
	}
	h.Mu.Lock()
	over := h.claim.Active() && h.lock.e.Now() >= h.claim.Deadline()
	h.Mu.Unlock()
	if over {
		h.step(claim.Event{Kind: claim.Timer}, nil)
	}
}

// Deadline returns until when the lease is valid if it is not renewed.
func (h *Lease) Deadline() time.Time {
	h = h.current()
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.lock.e.Time(h.claim.Deadline())
}

// WasQueued reports whether the lease was granted by way of the queue, as far as is known.
func (h *Lease) WasQueued() bool {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.claim.WasQueued()
}

// Observation returns the call that acquired the lease, for the observer.
func (h *Lease) Observation() *Observation { return h.observation }

// Token returns the identity of the lease.
func (h *Lease) Token() string { return h.current().token }

// Fence returns the fencing token.
func (h *Lease) Fence() uint64 { return h.fence }

// Since returns when the lease was granted.
func (h *Lease) Since() time.Time {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.lock.e.Time(h.claim.Since())
}

// Name returns what is locked.
func (h *Lease) Name() string { return h.lock.spec.Name }

// Kind returns the primitive.
func (h *Lease) Kind() string { return h.lock.spec.Scripts.Kind }

// Do calls fn while the lease is held and releases it, also if fn panics.
func (h *Lease) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return lifecycle.Do(ctx, h, fn)
}

// Is reports whether the lease is one for this use, by the first letter of its token's flags; "" if there are none.
func (h *Lease) Is(use string) bool {
	h = h.current()
	if h.use != "" {
		return h.use == use
	}
	t, _ := protocol.ParseToken(h.token)
	return t.Flags[:min(len(t.Flags), 1)] == use
}
