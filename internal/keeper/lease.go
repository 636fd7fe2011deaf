package keeper

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/random"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/timers"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// leaseSet is the set of a keeper's held leases. It is safe for concurrent use.
type leaseSet struct {
	mu     sync.Mutex // guards what follows
	closed bool
	held   map[*Lease]struct{}
}

// close returns the leases, and makes add refuse others.
func (s *leaseSet) close() []*Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return slices.Collect(maps.Keys(s.held))
}

// all returns the leases.
func (s *leaseSet) all() []*Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.held))
}

// count returns the number of leases.
func (s *leaseSet) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held)
}

// add adds a lease that was granted. It reports false after close.
func (s *leaseSet) add(h *Lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.held[h] = struct{}{}
	}
	return !s.closed
}

// remove removes a lease that has ended for its holder.
func (s *leaseSet) remove(h *Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, h)
}

// NewObservation returns what the events of a new call have in common, or nil if there is no observer. The flags are those of the
// request's token.
func (l *Lock) NewObservation(ctx context.Context, flags string) *Observation {
	if l.k.observe == nil {
		return nil
	}
	return &Observation{observe: l.k.observe, lock: &l.Resource, ctx: ctx, request: l.k.calls.Add(1), mode: modeOf(flags), got: time.Now()}
}

// Event returns an event of the lock, for a call if o is not nil.
func (l *Lock) Event(t EventType, o *Observation) Event { return newEvent(&l.Resource, t, o) }

// Observe passes an event to the keeper's observer.
func (l *Lock) Observe(ev Event) { l.k.Report(ev) }

// ExpectWaiters notes that others probably wait, so that the next release of the name does not begin with the fast script.
func (l *Lock) ExpectWaiters() { l.FastBackoff.Release.Contended() }

// ReportLeak reports to the observer that nobody can release a lease any more, and logs it unless another leak was logged lately. held is how
// long ago the lease was granted.
func (l *Lock) ReportLeak(o *Observation, token string, fence uint64, held time.Duration) {
	ev := l.Event(Leaked, o)
	ev.Token, ev.Fence, ev.Duration = token, fence, held
	if l.k.leaks.mayLog(time.Now()) {
		l.k.Config.Log.Warn("lockkeeper: a lease became unreachable without a release and keeps being renewed; release every lease, for example with defer",
			"kind", ev.Kind, "name", ev.Name, "token", token, "fence", fence, "held", held)
	}
	l.Observe(ev)
}

// Lease is one token in this process: its claim, the request and the caller that waits for it, its timer, its holder's contexts, and its
// cleanup. It exists from the request on, and other packages get it when it is granted. It is safe for concurrent use.
type Lease struct {
	lifecycle.Lifecycle
	lock     *Lock
	token    string
	request  *request      // until it is granted, or longer if a late reply may come; nil: adopted, or made for a cleanup
	observer Observer      // gets its events; nil: the keeper's hooks alone
	fence    atomic.Uint64 // 0 before the grant; a conversion raises it
	timer    timers.Timer

	// Guarded by the Lifecycle's Mu. A process may have a hundred thousand leases, so what few have is behind pointers.
	Claim       claim.Claim
	conversion  *conversion  // nil: it was never converted
	observation *Observation // of the call that acquired it, or converted it last
	failed      *failures    // nil: no call has failed since the last answer to a renewal
	cleanup     *Cleanup     // once it is released
}

// failures are what a lease knows of calls that have failed.
type failures struct {
	backoff random.Backoff // of the call that is repeated now
	last    error          // of the last renewal, or before the grant, of the last call that asked for the lease; nil: it was answered
}

// failuresLocked returns the lease's record of failed calls, which it makes when it is first needed. The caller holds Mu.
func (h *Lease) failuresLocked() *failures {
	if h.failed == nil {
		h.failed = &failures{}
	}
	return h.failed
}

// lastErrLocked returns the error of the last call; nil: it was answered. The caller holds Mu.
func (h *Lease) lastErrLocked() error {
	if h.failed == nil {
		return nil
	}
	return h.failed.last
}

// Reasons for a loss, in addition to ErrNotHeld.
var (
	errDeadline = server.NewLoss(server.LossExpired, "it was not renewed in time")
	errLifetime = server.NewLoss(server.LossMaxLifetime, "it has reached its maximum lifetime")
	errFixed    = server.NewLoss(server.LossNotRenewed, "its time is over and it is not renewed")
)

// NewLease returns the Lease of a token: of a new request, of a lease that is adopted, or of a token that is to be cleaned up, as c says.
func (l *Lock) NewLease(token string, c claim.Claim, o *Observation) *Lease {
	h := &Lease{lock: l, token: token, Claim: c, observation: o}
	h.Begin(h)
	h.timer.Handler = (*leaseTimer)(h)
	return h
}

// leaseTimer is a Lease as the handler of its timer.
type leaseTimer Lease

// Fire implements timers.Handler.
func (t *leaseTimer) Fire(now time.Time) { (*Lease)(t).onTimer(now) }

func (h *Lease) onTimer(now time.Time) {
	h.StepBy(h.lock.k.Instant(now), claim.Event{Kind: claim.Timer}, nil, h.lock.k.Transport.Send)
}

// Start adds an adopted lease to the held leases, and sets its timer, for the first renewal. It reports false after Close.
func (h *Lease) Start(fence uint64, at claim.Instant) bool {
	h.fence.Store(fence)
	if !h.lock.k.leases.add(h) {
		return false
	}
	h.arm(at)
	if !h.lock.k.listens.Load() {
		h.lock.listen(h.token)
	}
	return true
}

// arm sets the timer of an adopted lease, unless it has ended.
func (h *Lease) arm(at claim.Instant) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.Claim.Active() {
		h.lock.k.Timers.Set(&h.timer, h.lock.k.Time(at))
	}
}

// Step passes an event to the claim, and does what the claim says. cause is the error that belongs to the event, if there is one.
func (h *Lease) Step(ev claim.Event, cause error) claim.Effects {
	return h.StepBy(h.lock.k.Now(), ev, cause, h.lock.k.Transport.Send)
}

// StepAt is Step at a certain time.
func (h *Lease) StepAt(now claim.Instant, ev claim.Event, cause error) claim.Effects {
	return h.StepBy(now, ev, cause, h.lock.k.Transport.Send)
}

// StepBy is Step at a certain time, with a choice of how calls are sent: by Transport.Send or SendInline.
func (h *Lease) StepBy(now claim.Instant, ev claim.Event, cause error, by func(*transport.Call)) claim.Effects {
	h.Mu.Lock()
	var a actions
	a.begin(h, now, &ev, cause)
	h.Mu.Unlock()
	a.finish(h, by)
	return a.Effects
}

// endErrorLocked returns the error with which the lease has ended for its holder. cause is the cause of the event that has ended it.
func (h *Lease) endErrorLocked(cause error) error {
	switch reason := h.Claim.Reason(); reason {
	case claim.ByRelease, claim.ByForgetting:
		return h.lock.ReleasedError()
	case claim.ByServer:
		cause = ErrNotHeld
	case claim.ByFixedTTL:
		cause = errFixed
	case claim.ByLifetime:
		cause = errLifetime
	case claim.ByDeadline:
		cause = errDeadline
		if last := h.lastErrLocked(); last != nil {
			cause = fmt.Errorf("%w: %w", errDeadline, last)
		}
	}
	return h.lock.Fail(server.ErrLost, cause)
}

// Lose ends the lease as lost, if it has not ended.
func (h *Lease) Lose(reason error) {
	h.Step(claim.Event{Kind: claim.Failed}, reason)
}

// observe reports an event to the observer, and to the keeper's hooks.
func (h *Lease) observe(what EventType, err error) {
	h.observeFor(h.Observation(), h.Fence(), what, err)
}

// observeFor reports an event as one of the call o, which had the lease with that fence.
func (h *Lease) observeFor(o *Observation, fence uint64, what EventType, err error) {
	if h.observer != nil && h.observer.LeaseEvent(what) || o == nil {
		return
	}
	ev := h.lock.Event(what, o)
	ev.Token, ev.Fence, ev.Err = h.token, fence, err
	o.OfLease(ev)
}

// Snapshot returns a copy of the lease's claim as it is now.
func (h *Lease) Snapshot() claim.Claim {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.Claim
}

// Cleanup returns the lease's cleanup, which may have ended; nil: the lease was not released.
func (h *Lease) Cleanup() *Cleanup {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.cleanup
}

// State returns the lease's deadline, and its error once it has ended. Unlike Err, it does not end a lease whose deadline has passed, so no
// Observer is called, and a caller may hold the mutex that its Observer locks.
func (h *Lease) State() (deadline time.Time, err error) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.lock.k.Time(h.Claim.Deadline()), h.ErrLocked()
}

// CheckLeak reports the lease if it is held and renewed.
func (h *Lease) CheckLeak() {
	if h.Snapshot().Active() && !h.lock.Rules.NoRenewal {
		h.lock.ReportLeak(h.Observation(), h.token, h.Fence(), time.Since(h.Since()))
	}
}

// CheckDeadline ends the lease as lost if its deadline has passed and its timer has not fired yet, for example because the
// process was frozen.
func (h *Lease) CheckDeadline() {
	h.Mu.Lock()
	over := h.Claim.Active() && h.lock.k.Now() >= h.Claim.Deadline()
	h.Mu.Unlock()
	if over {
		h.Step(claim.Event{Kind: claim.Timer}, nil)
	}
}

// Deadline returns until when the lease is valid if it is not renewed.
func (h *Lease) Deadline() time.Time { return h.lock.k.Time(h.Snapshot().Deadline()) }

// Observation returns the Observation of the call that acquired the lease, or converted it last.
func (h *Lease) Observation() *Observation {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.observation
}

// Token returns the identity of the lease.
func (h *Lease) Token() string { return h.token }

// Fence returns the fence, which a conversion raises.
func (h *Lease) Fence() uint64 { return h.fence.Load() }

// Since returns when the lease was granted.
func (h *Lease) Since() time.Time { return h.lock.k.Time(h.Snapshot().Since()) }

// Name returns what is locked.
func (h *Lease) Name() string { return h.lock.Name() }

// Kind returns the primitive.
func (h *Lease) Kind() string { return h.lock.Kind() }

// CancelGrace is how long a caller whose context has ended waits at most for a cleanup.
const CancelGrace = time.Second
