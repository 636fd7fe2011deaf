package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// leaseState is the state of a lease for its holder, and how it ended. docs/protocol.md has the transitions.
type leaseState uint8

const (
	leaseHeld        leaseState = iota
	leaseUnconfirmed            // granted to a waiter, for its claim ttl at most; the first renewal confirms it
	leaseConverting             // held, or replaced by another one; see conversion
	leaseContinued              // another lease, next, has replaced it at the server, and is what the holder of this one has
	leaseReleased               // ended by its holder or by Close, with a cleanup
	leaseDetached               // ended without a cleanup: the caller has a lease that replaced it, or it stays at the server
	leaseLost                   // ended by its deadline, or because the server no longer has it
)

// ended reports whether the holder has lost or given up the lease for good.
func (s leaseState) ended() bool { return s >= leaseReleased }

// active reports whether the lease has not ended and is the one that the server has, as far as is known.
func (s leaseState) active() bool { return s < leaseContinued }

// Lease is a lease at one server. It is held, and then, once and for good, released or lost. It is safe for concurrent use.
type Lease struct {
	lifecycle
	lock        *Lock
	token       string
	request     *request // that was granted it, if that is still needed
	fence       uint64
	grantedAt   time.Time
	timer       timers.Timer
	owner       *Owner       // the lease that it is part of, which gets its events; nil: none
	adopted     bool         // made from a token by Adopt
	use         string       // its use, if that is not what its token says; see Convert
	retention   *retention   // what is granted by it, if the process retains it
	observation *Observation // the call that acquired it, for the observer

	// Guarded by the lifecycle's mu. A process may have a hundred thousand leases, so what few have is behind pointers.
	state      leaseState                  // ended if and only if the lifecycle's err is set
	inFlight   int32                       // renewals under way
	ttl        int64                       // ms that a renewal asks for
	deadline   time.Time                   // until when it is believed, if nothing else comes
	renewAt    time.Time                   // zero: no renewal is due
	metadataAt time.Time                   // when a renewal last extended the metadata of the name
	extension  *extension                  // nil: Extend was never called
	drained    chan struct{}               // made when the lease ends while renewals are under way, and closed when they have ended
	conversion *conversion                 // while one is under way, and in a lease that ended meanwhile
	next       atomic.Pointer[Lease]       // the lease that continues this one; see become. Set under mu, with the state
	backoff    *backoff.ExponentialBackOff // nil while renewals succeed
	renewErr   error                       // the last error of a renewal
	cleanup    *Cleanup                    // once it is released
}

// Reasons for a loss, in addition to ErrNotHeld.
var (
	errDeadline = NewLoss(LossExpired, "it was not renewed in time")
	errLifetime = NewLoss(LossMaxLifetime, "it has reached its maximum lifetime")
	errFixed    = NewLoss(LossNotRenewed, "its time is over and it is not renewed")
)

func (l *Lock) newLease(token string, fence int64, deadline time.Time, o *Observation) *Lease {
	now := time.Now()
	h := &Lease{lock: l, token: token, fence: uint64(fence), grantedAt: now, metadataAt: now, ttl: l.ttl, deadline: deadline, observation: o}
	h.begin(h)
	h.timer.Handler = (*leaseTimer)(h)
	return h
}

// leaseTimer is a Lease as the handler of its timer.
type leaseTimer Lease

// Fire implements timers.Handler.
func (t *leaseTimer) Fire(now time.Time) { (*Lease)(t).onTimer(now) }

// addLease registers a lease. It reports false after Close.
func (e *Engine) addLease(h *Lease) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.leases[h] = struct{}{}
	return true
}

// start sets the timer of a new lease.
func (h *Lease) start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state.ended() {
		return
	}
	now := time.Now()
	switch {
	case !h.lock.spec.NoRenewal:
		h.renewAt = h.lock.e.renewalTime(now, min(duration(h.ttl)/3, h.deadline.Sub(now)/3))
	case h.state == leaseUnconfirmed:
		h.renewAt = now // confirmed once, for what remains of its time
	}
	h.armLocked()
	if !h.lock.e.listens.Load() {
		h.lock.listen(h.token)
	}
}

// lose ends the lease as lost, if it has not ended. Without a reason its deadline has passed.
func (h *Lease) lose(reason error) {
	h.mu.Lock()
	if next := h.next.Load(); next != nil {
		h.mu.Unlock()
		next.lose(reason)
		return
	}
	if h.state.ended() {
		h.mu.Unlock()
		return
	}
	spec := h.lock.spec
	switch {
	case reason != nil:
	case h.renewErr == ErrNotHeld:
		reason = ErrNotHeld
	case spec.NoRenewal:
		reason = errFixed
	case spec.MaxLifetime > 0 && time.Since(h.grantedAt) >= spec.MaxLifetime-Margin(spec.MaxLifetime)-ShortestTTL:
		reason = errLifetime
	case h.renewErr != nil:
		reason = fmt.Errorf("%w: %w", errDeadline, h.renewErr)
	default:
		reason = errDeadline
	}
	err := h.lock.fail(ErrLost, reason)
	cancel := h.endLocked(leaseLost, err)
	h.mu.Unlock()
	cancel()
	h.forget()
	h.observe(Lost, time.Since(h.grantedAt), err)
}

// endLocked ends the lease and returns a function that cancels the contexts; see lifecycle.endLocked.
func (h *Lease) endLocked(state leaseState, err error) (cancel func()) {
	h.state = state
	endContexts, x := h.lifecycle.endLocked(err), h.retention
	if x == nil {
		return endContexts
	}
	x.End()
	return func() {
		endContexts()
		x.leaseEnded(err)
	}
}

// endWithNext ends a lease that another one continued, which has ended.
func (h *Lease) endWithNext(err error) {
	next := h.next.Load()
	next.mu.Lock()
	state := next.state
	next.mu.Unlock()
	h.endAs(state, err)
}

// endAs ends the lease for its holder, unless it has ended, and does nothing else.
func (h *Lease) endAs(state leaseState, err error) {
	h.mu.Lock()
	cancel := func() {}
	if !h.state.ended() {
		cancel = h.endLocked(state, err)
	}
	h.mu.Unlock()
	cancel()
}

// forget stops the lease's timer and unregisters it.
func (h *Lease) forget() {
	e := h.lock.e
	e.timers.Cancel(&h.timer)
	e.mu.Lock()
	delete(e.leases, h)
	e.mu.Unlock()
}

func (h *Lease) observe(what EventType, took time.Duration, err error) {
	if h.owner != nil {
		h.owner.Observer.PartEvent(what)
		return
	}
	if h.lock.e.cfg.Observe == nil || what == Released && h.retention.isShared() {
		return
	}
	ev := h.lock.Event(what, h.observation)
	ev.Token, ev.Fence, ev.Duration, ev.Err = h.token, h.fence, took, err
	h.lock.e.observe(ev)
}

// release ends the lease and starts its cleanup, which it returns; by sends the command. unused says that nobody ever had the
// lease. The error is ErrLost if the lease was lost; if there is nothing to clean up, both are nil.
func (h *Lease) release(by func(*transport.Call), unused bool) (*Cleanup, error) {
	return h.end(by, unused, time.Time{})
}

// end is release, or Complete if done is set.
func (h *Lease) end(by func(*transport.Call), unused bool, done time.Time) (*Cleanup, error) {
	h.CheckDeadline()
	h.mu.Lock()
	if next := h.next.Load(); next != nil {
		h.mu.Unlock()
		return next.end(by, unused, done)
	}
	if h.state.ended() {
		err := h.err
		if h.state == leaseLost && h.cleanup == nil {
			// The holder has now stopped as well. Should the server still know the token, others need not wait.
			h.cleanup = h.lock.newCleanup(h.token, h.inDoubt(), h.deadline)
			h.cleanup.done = done
			h.cleanup.send(h.lock.e.transport.Send)
		}
		h.mu.Unlock()
		if errors.Is(err, ErrReleased) {
			return nil, nil
		}
		return nil, h.lock.fail(err)
	}
	cancel := h.endLocked(leaseReleased, h.lock.releasedError())
	if h.inFlight > 0 && h.drained == nil {
		h.drained = make(chan struct{})
	}
	until := h.deadline.Add(Margin(duration(h.ttl)))
	c := h.lock.newCleanup(h.token, h.inDoubt(), until)
	c.unused, c.done, c.owner, c.explained = boolArg(unused), done, h.owner, !unused
	c.inDoubt = h.conversion.resolved() != nil // then it may be another lease by now, which is released as well
	h.cleanup = c
	h.mu.Unlock()
	cancel()
	h.forget()
	c.send(by)
	h.observe(Released, time.Since(h.grantedAt), nil)
	return c, nil
}

// Release releases the lease. See Lease.Release in package lockkeeper.
func (h *Lease) Release(ctx context.Context) error {
	if next := h.next.Load(); next != nil {
		return next.Release(ctx)
	}
	by := h.lock.e.transport.Send
	if ctx.Done() == nil {
		by = h.lock.e.transport.SendInline // the caller cannot be cancelled
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
	h.mu.Lock()
	drained, resolved := h.drained, h.conversion.resolved()
	h.mu.Unlock()
	if c.finished.isClosed() && drained == nil && resolved == nil {
		return c.err()
	}
	var timeout <-chan time.Time
	done := ctx.Done()
	if ctx.Err() != nil {
		grace := time.NewTimer(cancelGrace)
		defer grace.Stop()
		timeout, done = grace.C, nil
	}
	closing := h.lock.e.closing.Done()
	for _, ended := range []<-chan struct{}{c.finished.done(), drained, resolved} {
		for waiting := ended != nil; waiting; {
			select {
			case <-ended:
				waiting = false
			case <-done:
				return h.lock.fail(silence, ctx.Err())
			case <-timeout:
				return h.lock.fail(silence, ctx.Err())
			case <-closing:
				closing = nil
				if timeout == nil {
					limit := time.NewTimer(h.lock.e.untilClosed())
					defer limit.Stop()
					timeout = limit.C
				}
			}
		}
	}
	return c.err()
}

// inDoubt reports whether a copy of the request for this lease may still run after its release. For an adopted token that is
// not known.
func (h *Lease) inDoubt() bool { return h.adopted || h.request != nil && h.request.hasInDoubt() }

// currentCleanup returns the cleanup of the lease, or nil.
func (h *Lease) currentCleanup() *Cleanup {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cleanup
}

// abandon releases the lease in the background: its caller has returned.
func (h *Lease) abandon() { _, _ = h.release(h.lock.e.transport.Send, true) }

// setDeadlineLocked sets until when the lease is believed, also by those who were granted something by it inside the process.
func (h *Lease) setDeadlineLocked(deadline time.Time) {
	h.deadline = deadline
	if h.retention != nil {
		h.retention.SetDeadline(deadline)
	}
}

// CheckDeadline ends the lease as lost if its deadline has passed and its timer has not fired yet, for example because the
// process was frozen.
func (h *Lease) CheckDeadline() {
	if next := h.next.Load(); next != nil {
		if err := next.Err(); err != nil {
			h.endWithNext(err) // it ended before this one was updated
		}
		return
	}
	h.mu.Lock()
	over := h.state.active() && !time.Now().Before(h.deadline)
	h.mu.Unlock()
	if over {
		h.lose(nil)
	}
}

// Deadline returns until when the lease is valid if it is not renewed.
func (h *Lease) Deadline() time.Time {
	h = h.current()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.deadline
}

// Token returns the identity of the lease.
func (h *Lease) Token() string { return h.current().token }

// Fence returns the fencing token.
func (h *Lease) Fence() uint64 { return h.fence }

// Name returns what is locked.
func (h *Lease) Name() string { return h.lock.spec.Name }

// Kind returns the primitive.
func (h *Lease) Kind() string { return h.lock.spec.Scripts.Kind }

// Do calls fn while the lease is held and releases it, also if fn panics.
func (h *Lease) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return Do(ctx, h, fn)
}
