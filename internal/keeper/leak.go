package keeper

import (
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/timers"
)

// This file reports leases that nobody can release any more.

// leakInterval is the least time between two log lines about leaks. Leaks in between are counted.
const leakInterval = time.Minute

// leakLog bounds how many leaks are logged.
type leakLog struct {
	s     *server.Server
	timer timers.Timer // for the line about the leaks that were counted

	mu      sync.Mutex // guards the fields below
	logged  time.Time  // when a leak was last logged
	counted int        // leaks since then
}

// mayLog reports whether a leak may be logged now. If not, it is counted, and the number is logged later.
func (ll *leakLog) mayLog(now time.Time) bool {
	ll.mu.Lock()
	defer ll.mu.Unlock()
	if next := ll.logged.Add(leakInterval); !ll.logged.IsZero() && now.Before(next) {
		ll.counted++
		ll.s.Timers.SetIfSooner(&ll.timer, next)
		return false
	}
	ll.logged = now
	return true
}

// logCounted logs how many leaks were not logged.
func (ll *leakLog) logCounted(now time.Time) {
	ll.mu.Lock()
	n := ll.counted
	ll.counted, ll.logged = 0, now
	ll.mu.Unlock()
	if n > 0 {
		ll.s.Config.Log.Warn("lockkeeper: more leases became unreachable without a release; each is reported to the hook Leaked", "leases", n)
	}
}
