// Package retainer grants inside the process the reads of a lock, or the turns of a lock that has one holder at a time, while it holds one
// lease of package keeper for all of them:
//
//   - Lock (retainer.go) is a lock whose leases are granted inside; name is what the process remembers of one name.
//   - retention (retention.go) is one lease that is retained. It does what package retain decides, and is the lease's lease.Sharing.
//   - turn.go has the turns of one holder at a time, for which callers wait.
//   - Lease (lease.go) is a lease that was granted inside, and how it becomes a caller's own.
//
// Mutexes: that of a name is taken after that of an lease.Lease, and that of Names after it. Nothing is locked under them but the mutexes of
// packages lifecycle, wait and pubsub.
package retainer
