package keeper

// Observer gets the events of a lease that is part of something larger: of a lease at several servers (package quorum), or of one that callers
// of the process share (package share). It is called without any mutex of this package.
type Observer interface {
	// LeaseEvent is called when the lease is Renewed, Refused, Lost or Released. If own is true, the keeper's hooks are not called.
	LeaseEvent(EventType) (own bool)
	// CleanedUp is called when the lease's cleanup has ended, so that Cleanup.Ended is true. A Release that waits returns after the call.
	CleanedUp()
}
