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
// themselves, and so are readers. TryLock is refused while anybody waits, and TryRLock while a writer waits.
//
// So that readers do not starve either, Options.MaxWriterStreak bounds how many consecutive writers may overtake waiting readers;
// after that, all readers that wait at the time go first. With 1, one writer and the waiting readers alternate. The count starts
// again when a writer overtakes nobody, not when readers were granted the lock in between. If processes differ, the value of the
// writer that is granted the lock counts.
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
// # Retained leases
//
// With Options.Retain a process keeps a read lease at the server when its readers release the lock, and grants read leases to its
// own callers, without asking the server, until somebody waits to write. Use it where a process reads much more often than anybody
// writes.
//
// The read leases that are granted in this way share the lease at the server: they have its token, fence and deadline, and are lost
// together. The TTL of the lease at the server is the shorter of TTL and 5 s. It is renewed while it is used, and released when it
// has not been used for that time.
//
// A writer that has to wait makes the server recall the lease: the process admits no more readers, waits for the current ones, and
// releases the lease. If the process is frozen or cut off, the writer waits until the lease has expired. TryLock fails while
// another process retains a lease, and recalls it. A process without a subscription asks the server for every read, as does
// one that has just started.
//
// After a recall the process retains no lease of the name for about nine times as long as the recall took, at least 20 ms and at
// most a minute, and afterwards only if it reads about 20 times as often as it is recalled. A keeper retains leases of at most
// 10,000 names, those that it used last.
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
// the queue and heartbeats of the waiters. The [protocol] has the details.
//
// [protocol]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/protocol.md
package rwlock
