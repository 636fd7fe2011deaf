package engine

import (
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/timers"
)

// This file reports leases that nobody can release any more.

// CheckLeak reports the lease if it is held and renewed.
func (h *Lease) CheckLeak() {
	h = h.current()
	h.Mu.Lock()
	leaked := h.claim.Active() && !h.lock.spec.NoRenewal
	h.Mu.Unlock()
	if leaked {
		h.lock.ReportLeak(h.observation, h.token, h.fence, h.held())
	}
}

// leakInterval is how long further leaks are only counted after a line about leaks.
const leakInterval = time.Minute

// leakLog bounds how many leaks are logged.
type leakLog struct {
	timer timers.Timer // for the line about those that were counted

	mu      sync.Mutex // guards the fields below
	logged  time.Time  // when the last line was
	counted int        // that were not logged since
}

// ReportLeak reports to the observer that nobody can release a lease any more, which has been held for that long, and logs it unless
// another one was logged lately.
func (l *Lock) ReportLeak(o *Observation, token string, fence uint64, held time.Duration) {
	ev := l.Event(Leaked, o)
	ev.Token, ev.Fence, ev.Duration = token, fence, held
	if l.e.mayLogLeak(time.Now()) {
		l.e.Config.Log.Warn("lockkeeper: a lease became unreachable without a release and keeps being renewed; release every lease, for example with defer",
			"kind", ev.Kind, "name", ev.Name, "token", token, "fence", fence, "held", held)
	}
	l.e.observe(ev)
}

// mayLogLeak reports whether a leak is to be logged now. Else it is counted, and the number is logged later.
func (e *Engine) mayLogLeak(now time.Time) bool {
	ll := &e.leaks
	ll.mu.Lock()
	defer ll.mu.Unlock()
	if next := ll.logged.Add(leakInterval); !ll.logged.IsZero() && now.Before(next) {
		ll.counted++
		e.Timers.SetIfSooner(&ll.timer, next)
		return false
	}
	ll.logged = now
	return true
}

// logLeaks logs how many leaks were not logged.
func (e *Engine) logLeaks(now time.Time) {
	ll := &e.leaks
	ll.mu.Lock()
	n := ll.counted
	ll.counted, ll.logged = 0, now
	ll.mu.Unlock()
	if n > 0 {
		e.Config.Log.Warn("lockkeeper: more leases became unreachable without a release; each is reported to the hook Leaked", "leases", n)
	}
}
