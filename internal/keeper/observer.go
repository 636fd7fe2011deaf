package keeper

// Observer is what a lease belongs to, if not to one caller alone: a lease at several servers, or one that callers of the process share.
// It is called without any mutex of this package.
type Observer interface {
	// LeaseEvent handles that the lease was Renewed, Refused, Lost or Released. It reports whether the keeper's hooks are not to know.
	LeaseEvent(EventType) (own bool)
	// CleanedUp handles that what ReleaseEnded or Cleanup.Ended reports may have changed. Release returns after that.
	CleanedUp()
}
