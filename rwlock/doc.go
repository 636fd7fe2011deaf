// Package rwlock provides a read-write lock: many may hold it for reading at the same time, or one for writing. It suits what
// is read far more often than it is changed, such as a cache.
//
//	l, err := rwlock.New(k, "catalog", nil)
//	…
//	lease, err := l.RLock(ctx) // or l.Lock(ctx), to write
//	…
//	defer lease.Release(ctx)
//
// Package [github.com/lockkeeper/lockkeeper] documents leases, fences, errors, and the options that all locks share.
//
// # Admission
//
// Writers are preferred: readers that arrive while a writer waits queue behind it, so the writer is admitted as soon as the
// earlier readers have released their leases or these have ended. Writers are granted the lock in order of arrival among
// themselves, and so are readers. So that readers do not starve either, Options.MaxWriterStreak bounds how many consecutive
// writers may overtake waiting readers; after that, all readers that wait at the time go first. TryLock is refused while
// anybody waits, and TryRLock while a writer waits.
//
// # Leases
//
// Every reader has a lease of its own, with a token, a fence and renewal; a reader that crashes loses its own lease and no
// other. There are no counters that a crash could leave wrong: the readers are a sorted set of leases, each with its end.
// Fences increase over readers and writers alike, so a read lease that is granted after a write lease has a larger fence.
//
// [Lock.Downgrade] converts a write lease into a read lease, without a gap in between. [Lock.Upgrade] converts a read lease
// into a write lease, when no other reader is left. A caller that waits for a write lease in another way while it holds a read
// lease of the same lock waits for itself.
//
// # Failures
//
// A waiting writer that crashes is detected by the next request or release, and at a heartbeat (2 s) at the latest, because its
// process no longer has a subscription. A waiting writer that is frozen delays readers until its heartbeat expires (6 s). All
// other failures are handled as in package fair.
//
// # Keys
//
// {prefix + name}:rwlock:holders is a sorted set of leases by the time at which they end. Beside it are a hash of metadata, and
// the queue and heartbeats of the waiters. docs/protocol.md describes the protocol.
package rwlock
