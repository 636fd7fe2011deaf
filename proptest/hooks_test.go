package proptest

import (
	"fmt"
	"sync"

	"github.com/lockkeeper/lockkeeper"
)

// Each call is reported as begun and as done, once. Each lease that a call has got is reported as released or lost, once and after that,
// and none that nobody got; callers that share a lease lose it together. Who counts leases by the hooks gets back to zero.
const hooksTell = "hooks are told of the end of each call and of each lease, once"

// reports is what the hooks of one keeper were told.
type reports struct {
	mu     sync.Mutex
	calls  map[uint64]*reportedCall
	leases map[string]*reportedLease // by their tokens
}

// reportedCall is one call.
type reportedCall struct{ begun, done, granted, released, early int }

// reportedLease is one token, of which several callers of a process may have the lease.
type reportedLease struct{ granted, released, lost int }

func newReports() *reports {
	return &reports{calls: map[uint64]*reportedCall{}, leases: map[string]*reportedLease{}}
}

// count adds these counts to the given hooks.
func (r *reports) count(h lockkeeper.Hooks) lockkeeper.Hooks {
	on := func(next func(lockkeeper.Event), note func(e lockkeeper.Event, c *reportedCall, l *reportedLease)) func(lockkeeper.Event) {
		return func(e lockkeeper.Event) {
			r.mu.Lock()
			c, l := r.calls[e.Request], r.leases[e.Token]
			if c == nil {
				c = &reportedCall{}
				r.calls[e.Request] = c
			}
			if l == nil {
				l = &reportedLease{}
				r.leases[e.Token] = l
			}
			if note(e, c, l); c.begun == 1 && c.done == 1 && c.granted > 0 && c.released == c.granted && c.early == 0 {
				delete(r.calls, e.Request) // inside a process there are many; what comes later is seen in the lease, which was granted
			}
			r.mu.Unlock()
			if next != nil {
				next(e)
			}
		}
	}
	h.AcquireStart = on(h.AcquireStart, func(_ lockkeeper.Event, c *reportedCall, _ *reportedLease) { c.begun++ })
	h.AcquireDone = on(h.AcquireDone, func(e lockkeeper.Event, c *reportedCall, l *reportedLease) {
		c.done++
		if e.Err == nil && e.Token != "" {
			l.granted++
			c.granted++
		}
	})
	h.Released = on(h.Released, func(_ lockkeeper.Event, c *reportedCall, l *reportedLease) {
		if c.begun == 0 && l.granted == 0 { // it was adopted
			l.granted++
		}
		l.released++
		c.released++
		c.early += c.begun - c.done
	})
	h.Lost = on(h.Lost, func(_ lockkeeper.Event, c *reportedCall, l *reportedLease) {
		l.lost++
		c.early += c.begun - c.done
	})
	return h
}

// problem returns what is wrong when the keeper is closed and its callers are gone. A conversion is a call that is granted a lease of the same
// token, and the call before has released it then. Callers that share a lease lose it together: that is reported once, of one of them.
func (r *reports) problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n, c := range r.calls {
		if c.begun > 1 || c.done != c.begun || c.early > 0 || c.begun == 1 && c.released > c.granted {
			return fmt.Sprintf("call %d: begun %d times, done %d times, granted %d leases, of which %d are released, %d ended before the call",
				n, c.begun, c.done, c.granted, c.released, c.early)
		}
	}
	for token, l := range r.leases {
		if l.lost > 1 || l.granted > 0 && (l.lost == 0 && l.released != l.granted || l.released > l.granted) {
			return fmt.Sprintf("lease %q: granted %d times, released %d times, lost %d times", token, l.granted, l.released, l.lost)
		}
	}
	return ""
}
