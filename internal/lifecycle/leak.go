package lifecycle

import (
	"runtime"
	"weak"
)

// leakable is a lease that is renewed for as long as nobody ends it.
type leakable interface {
	// CheckLeak reports the lease if it is held and renewed. It is called when the user can no longer release it.
	CheckLeak()

	// Life returns the Lifecycle of the lease, whose Begin has set this lease.
	Life() *Lifecycle
}

// Life returns lc, for a lease that embeds it.
func (lc *Lifecycle) Life() *Lifecycle { return lc }

// WatchForLeak reports the lease if user, what the user has of it, becomes unreachable while the lease is held and renewed. A lease that is not
// renewed is not reported, because it ends by itself.
//
// The cleanup's argument is a weak pointer: the runtime keeps the argument reachable, and the lease may refer to user by its keeper's hooks,
// which refer to the program. A renewed lease is kept reachable by its timer.
func WatchForLeak[T any](user *T, h Handle) {
	l, ok := h.(leakable)
	if !ok {
		return
	}
	lc := l.Life()
	lc.Mu.Lock()
	defer lc.Mu.Unlock()
	if lc.err == nil {
		lc.watch = runtime.AddCleanup(user, checkLeak, weak.Make(lc))
	}
}

func checkLeak(w weak.Pointer[Lifecycle]) {
	if lc := w.Value(); lc != nil {
		lc.lease.(leakable).CheckLeak()
	}
}
