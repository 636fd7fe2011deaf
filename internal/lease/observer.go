package lease

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/internal/wait"
)

// Observer is what a lease belongs to, if not to one caller alone: a lease at several servers, or a process that grants others inside by it.
// It is called without any mutex of this package.
type Observer interface {
	// LeaseEvent handles that the lease was Renewed, Lost or Released. It reports whether the keeper's hooks are not to know.
	LeaseEvent(EventType) (own bool)
	// CleanedUp handles that what ReleaseEnded or Cleanup.Ended reports may have changed. Release returns after that.
	CleanedUp()
}

// Sharing is the Observer of a lease that the process retains, to grant others inside by it. Its methods are called without any mutex of this
// package, if they do not say so.
type Sharing interface {
	Observer
	wait.Recalled

	// Requested notes the serial of the request for the lease, which is about to be sent. It may be called again, with another one.
	Requested(serial string)
	// SetDeadline notes until when the lease is certain. The lease's Mu is locked.
	SetDeadline(time.Time)
	// End lets nobody be granted anything by the lease from now on. The lease's Mu is locked.
	End()
	// Unused reports, when a renewal is due, whether the lease is to be given back instead. The lease's Mu is locked.
	Unused(now claim.Instant, ttl time.Duration) bool
	// Ended ends what was granted by the lease, which has ended with that error.
	Ended(err error)
	// GiveBack releases the lease when nobody is inside.
	GiveBack()
	// Renewal returns what a renewal does that is about to be sent, and would include the metadata or not.
	Renewal(metadata bool) retain.Renewal
	// Renewed handles that the server has renewed the lease, which was granted at that time, and whether it was recalled, if the renewal asked.
	Renewed(granted claim.Instant, asked retain.Renewal, recalled bool)
	// RenewalRefused handles that the server refuses renewals with two keys for now.
	RenewalRefused(asked retain.Renewal)
}
