package engine

import (
	"runtime"
	"time"
)

// This file reports leases that nobody can release any more.

// leakable is a lease that is renewed for as long as nobody ends it.
type leakable interface {
	// CheckLeak reports the lease if it is held and renewed. The user can no longer release it.
	CheckLeak()
}

// WatchForLeak reports the lease if what the user has of it becomes unreachable while the lease is held and renewed. The lease must
// not refer to user. Leases that are not renewed end by themselves, and those that were granted inside the process would cost several
// times as much; they are not watched.
func WatchForLeak[T any](user *T, h Handle) {
	if l, ok := h.(leakable); ok {
		runtime.AddCleanup(user, leakable.CheckLeak, l)
	}
}

// CheckLeak reports the lease if it is held and renewed.
func (h *Lease) CheckLeak() {
	h = h.current()
	h.mu.Lock()
	leaked := h.state.active() && !h.lock.spec.NoRenewal
	h.mu.Unlock()
	if leaked {
		h.lock.ReportLeak(h.observation, h.token, h.fence, time.Since(h.grantedAt))
	}
}

// ReportLeak logs that nobody can release a lease any more, which has been held for that long, and reports it to the observer.
func (l *Lock) ReportLeak(o *Observation, token string, fence uint64, held time.Duration) {
	ev := l.Event(Leaked, o)
	ev.Token, ev.Fence, ev.Duration = token, fence, held
	l.e.cfg.Log.Warn("lockkeeper: a lease became unreachable without a release and keeps being renewed; release every lease, for example with defer",
		"kind", ev.Kind, "name", ev.Name, "token", token, "fence", fence, "held", held)
	l.e.observe(ev)
}
