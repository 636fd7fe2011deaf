package lifecycle

import "runtime"

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
