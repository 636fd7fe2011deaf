// Package rwlock is a lock that many may hold for reading at the same time, or one for writing: for caches that are read
// far more often than they are rebuilt.
//
// # Admission
//
// Readers hold it together; a writer holds it alone. Writers are preferred: readers that arrive while a writer waits
// queue behind it, so it is admitted as soon as the earlier readers have left or their leases have ended. Writers among
// themselves are granted the lock in order, and so are readers. So that readers do not starve either,
// Options.MaxWriterStreak bounds how many consecutive writers may overtake waiting readers; after that, all readers
// that wait at the time go first. A try never overtakes waiters: TryLock is refused while anybody waits, and TryRLock
// while a writer waits.
//
// # Leases
//
// Every reader has a lease of its own, with a token, a fence, renewal and a loss signal; one that crashes loses its own
// lease and no more. There are no counters that a crash could leave wrong: the readers are a sorted set of leases, each
// with its end. Fences rise over readers and writers alike, so every read lease granted after a write lease has a larger
// fence than it.
//
// A write lease can become a read lease ([Lock.Downgrade]) without a gap, and a read lease a write lease
// ([Lock.Upgrade]) when no other reader is left. The lock is not re-entrant: a caller that waits for a write lease while
// holding a read lease of the same lock waits for itself, unless it uses Upgrade.
//
// # Failures
//
// A waiting writer that crashes is detected by the next request or release, and at a heartbeat (2 s) at the latest: it no
// longer has a subscriber. One that is frozen delays readers until its heartbeat expires (6 s). The rest is as in package
// fair.
//
// # Keys
//
// {prefix + name}:rwlock:holders is a sorted set of leases by the time at which they end; beside it are a hash of metadata,
// and the queue and heartbeats of the waiters. docs/protocol.md has the whole protocol.
package rwlock
