package lifecycle

import (
	"runtime"
	"weak"
)

// leakable is a lease that is renewed for as long as nobody ends it.
type leakable interface {
	// CheckLeak reports the lease if it is held and renewed. The user can no longer release it.
	CheckLeak()

	// Life returns the Lifecycle of the lease, whose Begin has set this lease.
	Life() *Lifecycle
}

// Life returns lc, for a lease that embeds it.
func (lc *Lifecycle) Life() *Lifecycle { return lc }

// WatchForLeak reports the lease if what the user has of it becomes unreachable while the lease is held and renewed. Leases that are not
// renewed end by themselves, and those that were granted inside the process would cost several times as much; they are not watched.
//
// The runtime keeps the argument of a cleanup reachable, and a lease may refer to user: its keeper has hooks, which refer to the program.
// Therefore the argument is a weak pointer. A lease that is renewed is kept reachable by its timer.
func WatchForLeak[T any](user *T, h Handle) {
	if l, ok := h.(leakable); ok {
		runtime.AddCleanup(user, checkLeak, weak.Make(l.Life()))
	}
}

func checkLeak(w weak.Pointer[Lifecycle]) {
	if lc := w.Value(); lc != nil {
		lc.lease.(leakable).CheckLeak()
	}
}
