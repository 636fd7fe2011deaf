package share

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Lease is what a caller has of a shared lease. Token, fence and deadline are those of the shared lease. It ends when the caller releases it, or
// with the shared lease. It is safe for concurrent use.
type Lease struct {
	shared      *shared
	observation atomic.Pointer[keeper.Observation] // the call, for the observer; nil: its end was reported
	state       atomic.Uint32
	lifecycle   atomic.Pointer[lifecycle.Lifecycle] // nil until somebody wants to know when the lease ends; most callers do not
}

// The states of a Lease.
const (
	held     uint32 = iota
	released        // by the caller
	over            // by the caller, after the shared lease had ended
)

// newLease returns the lease of a caller who is inside.
func (s *shared) newLease(o *keeper.Observation) *Lease {
	h := &Lease{shared: s}
	h.observation.Store(o)
	return h
}

// Name returns what is locked.
func (h *Lease) Name() string { return h.shared.lock.Name() }

// Token returns the identity of the shared lease.
func (h *Lease) Token() string { return h.shared.lease.Token() }

// Fence returns the fencing token of the shared lease.
func (h *Lease) Fence() uint64 { return h.shared.lease.Fence() }

// Deadline returns until when the shared lease is valid if it is not renewed.
func (h *Lease) Deadline() time.Time { return h.shared.lease.Deadline() }

// CheckDeadline implements lifecycle.DeadlineChecker.
func (h *Lease) CheckDeadline() {
	if err := h.Err(); err != nil {
		h.Life().End(err)()
	}
}

// Err returns nil while the lease is held, and then an error that matches ErrReleased or ErrLost.
func (h *Lease) Err() error {
	if h.state.Load() == released {
		return h.shared.lock.ReleasedError()
	}
	return h.shared.lease.Err()
}

// IsFirst reports whether the server has granted the lease to this caller.
func (h *Lease) IsFirst() bool { return h.shared.first == h }

// CheckLeak reports the lease if its caller has not released it.
func (h *Lease) CheckLeak() {
	if l := h.shared.lease; h.state.Load() == held && l.Snapshot().Active() {
		h.shared.lock.ReportLeak(h.observation.Load(), h.Token(), h.Fence(), time.Since(l.Since()))
	}
}

// Life returns the Lifecycle, which ends with the shared lease.
func (h *Lease) Life() *lifecycle.Lifecycle {
	if lc := h.lifecycle.Load(); lc != nil {
		return lc
	}
	lc := &lifecycle.Lifecycle{}
	lc.Begin(h)
	if !h.lifecycle.CompareAndSwap(nil, lc) {
		return h.lifecycle.Load()
	}
	stop := h.shared.lease.OnEnd(func(err error) { lc.End(err)() })
	lc.OnEnd(func(error) { stop() })
	return lc
}

// Done returns a channel that is closed when the lease ends.
func (h *Lease) Done() <-chan struct{} { return h.Life().Done() }

// Context returns a child of parent that is also canceled when the lease ends.
func (h *Lease) Context(parent context.Context) context.Context { return h.Life().Context(parent) }

// OnEnd calls f when the lease ends.
func (h *Lease) OnEnd(f func(error)) (stop func()) { return h.Life().OnEnd(f) }

// Extend returns ErrInvalid, because other callers may rely on the shared lease, now or later.
func (h *Lease) Extend(context.Context, time.Duration) error {
	return h.shared.lock.Invalid("a lease of a lock with Linger cannot be extended, because other callers of the process may share it; it is renewed until it is released")
}

// Release ends the lease for its caller. If the caller is the last one inside after Linger, it releases the shared lease at the server, and
// otherwise sends nothing. See Lease.Release in package lockkeeper.
func (h *Lease) Release(ctx context.Context) error {
	s := h.shared
	inTime := s.InTime()
	var lost error
	if !inTime || !s.IsOpen() {
		lost = s.lease.Err()
	}
	if !h.end(lost) {
		return nil
	}
	if s.leave(inTime) {
		if err := s.release(ctx); lost == nil {
			return err
		}
	}
	if errors.Is(lost, server.ErrReleased) { // by Close
		return nil
	}
	return lost
}

// end ends the lease for its caller. It reports false if the lease had ended. lost is the error with which the shared lease has ended, or nil.
func (h *Lease) end(lost error) bool {
	state := released
	if lost != nil {
		state = over
	}
	if !h.state.CompareAndSwap(held, state) {
		return false
	}
	if lc := h.lifecycle.Load(); lc != nil {
		lc.End(h.Err())()
	}
	if lost == nil || errors.Is(lost, server.ErrReleased) {
		h.observedBy(nil, h.Fence())
	}
	return true
}

// observedBy makes o the call that has the lease (nil: none does), and reports a release by the call before, which was granted fence. After an
// upgrade, for example, o is the upgrade, and the read is reported as released.
func (h *Lease) observedBy(o *keeper.Observation, fence uint64) {
	former := h.observation.Swap(o)
	if former == nil {
		if o != nil { // the lease was released meanwhile
			h.observedBy(nil, h.Fence())
		}
		return
	}
	ev := h.shared.lock.Event(keeper.Released, former)
	ev.Token, ev.Fence, ev.Local = h.Token(), fence, true
	former.OfLease(ev)
}
