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
// [Lock.Downgrade] makes a write lease read, without a gap in between. [Lock.Upgrade] makes a read lease write, when no other reader
// is left. The lease goes on, with a larger fence. A caller that waits for a write lease in another way while it holds a read
// lease of the same lock waits for itself.
//
// # Linger
//
// With Options.Linger the readers of a process share a read lease, without the server, until Linger has passed since the lease was
// granted. The last of them to release it after that releases it at the server; if nobody reads then, the process does. A writer
// waits for at most Linger longer. Use it where a process reads more than once in a Linger. It sends two commands per lease:
//
//	reads/s of      commands/s with Linger
//	a process       0       1 ms    5 ms    20 ms   100 ms
//	10              20      20      19      17      10
//	100             200     182     133     67      18
//	1,000           2,000   1,000   333     95      20
//	10,000          20,000  1,818   392     100     20
//
// Readers that share a lease have its token, fence and deadline, and lose it together. A writer in the same process ends the sharing
// at once, and while it waits at the server no lease is shared. Upgrade ends it as well, and waits until the caller is the only one
// that has the lease. Adopt, and Extend of a lease of RLock, return ErrInvalid. A process that crashes or freezes keeps writers out
// until its lease ends, as any reader does.
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
