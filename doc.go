// Package lockkeeper provides distributed locks on Redis and Valkey: mutexes, FIFO locks, read-write locks, counting
// semaphores, rate limits, and jobs that run once per period. A holder is notified when its lock is lost.
//
// This package has what all of them share: the [Keeper], which owns the use of the client's connections, and the [Lease],
// which is what a successful Lock returns. The locks are in the packages below it: mutex, fair, rwlock, semaphore,
// ratelimit, redlock and once. Package election elects a leader by such a lock, and package joblimit limits the workers of a job queue.
//
//	k, err := lockkeeper.New(rdb, nil)
//	defer k.Close()
//	m, err := mutex.New(k, "orders:42", nil)
//	err = m.Do(ctx, func(ctx context.Context, fence uint64) error {
//		return charge(ctx, order, fence)
//	})
//
// Package lockkeepertest has a server and faults for tests of code that uses locks.
//
// What follows holds for all packages; each says only what differs.
//
// # Names and options
//
// A constructor (mutex.New and so on) sends nothing. Its error is [ErrInvalid]: for a name that is empty, longer than 1024
// bytes or breaks the hash tags of a cluster, and for an option out of range. Nil options mean the defaults, and so does
// the zero value of each field. Options are copied. What New returns is immutable and safe for concurrent use by any
// number of goroutines; each acquisition returns a lease of its own. Locks are not re-entrant: a holder that locks again
// waits for itself.
//
// Most options have these fields:
//
//   - TTL: how long a lease lasts without renewal, and so how long a crashed holder keeps others out. From 10 ms to 365
//     days, in whole milliseconds; a fraction is dropped. Default 30 s ([DefaultTTL]).
//   - NoRenewal: leases are not renewed and end after TTL unless they are extended. By default they are renewed in the
//     background at a third of TTL.
//   - MaxLifetime: a lease is not renewed beyond this, which bounds how long a holder that hangs keeps others out. At least
//     TTL. An Extend beyond it is refused. Default 0: no bound.
//
// # Acquiring
//
// A call that waits (Lock, RLock, Acquire) waits until it is granted, until ctx ends, or until Redis has failed for longer
// than the keeper's [RetryPolicy] allows. When ctx ends, it returns at once: it leaves the queue in the background, and a
// grant that arrives meanwhile is released. A try (TryLock and so on) never waits for a holder; it blocks for a round trip,
// or for up to three attempts while Redis fails. After any error nothing is held. The error is
//
//   - ctx.Err(), if ctx ended the call; with [ErrNotAcquired] if the lock was held elsewhere, and with [ErrUnavailable] if
//     Redis was not answering,
//   - [ErrNotAcquired], of a try: the lock is held elsewhere, or others are queued before the caller,
//   - [ErrUnavailable]: Redis gave no answer, or could not serve, until the keeper's [RetryPolicy] gave up,
//   - [ErrClosed]: the keeper was closed,
//   - *[NotAcknowledgedError]: the keeper has [Options.ReplicaAck], and replicas did not acknowledge the grant in time,
//   - an error reply of Redis that requires intervention, such as NOPERM or OOM, at once.
//
// Do acquires, calls fn with a context that ends when the lease is lost and with the lease's fence, and releases, also if
// fn panics. It returns the error of the acquisition, or fn's, joined with that of the release: [ErrLost] if the lease was lost
// meanwhile, [ErrUnavailable] if the release was not answered. It
// releases with ctx: while Redis does not answer, it waits until ctx or the lease ends.
//
// [LockAll] acquires several locks, all or none. [Locker] is the interface that locks of all kinds have in common. In the code
// that a lock protects, [LeaseFromContext] returns its lease.
//
// Adopt makes a lease from a token, in another process than the one that acquired it or after a restart, and extends it to
// the whole TTL. Two leases then refer to one grant, so the former holder must stop using its own, and should have acquired
// it with NoRenewal. It blocks as [Lease.Extend] does, and then until replicas have the lease, if the keeper has
// [Options.ReplicaAck]. The error is [ErrLost] if the token no longer holds the lock. After any other error the lease is
// held by its former holder as before, or for longer.
//
// Holder, Holders and Waiters read who holds the lock and who waits, in any process, and change nothing. They block for a
// round trip per 500 entries, and make up to three attempts; an entry that is added or removed meanwhile may be missing.
// The error matches ctx.Err(), [ErrUnavailable] or [ErrClosed], or is an error reply of Redis.
//
// # Leases
//
// Every grant is a lease: it belongs to one token and ends by itself unless it is renewed. A lease is held, and then, once
// and for good, either released, because its holder released it, or lost, because the server no longer knows it or its
// deadline passed: while the server could not be reached, or without renewal (NoRenewal, MaxLifetime). The library never
// acquires a lost lease again by itself.
//
// # Clocks
//
// The server uses its own clock: every transition is one Lua script, and the only time in it is Redis TIME. The process
// uses its monotonic clock: a lease is valid until a deadline counted from before the request was sent, less a margin
// for drift, so a holder never trusts it longer than the server grants it. Wall clocks are not used and need not agree. A
// process that is suspended together with its monotonic clock (a paused virtual machine) is the exception: then only the
// fence protects.
//
// # What is not promised
//
// Redis replicates asynchronously, so a failover can lose a grant and give the lock to a second holder. And a process may
// be paused between its last check of the lease and its write. Against both there is [Lease.Fence]: a number larger than
// that of every earlier lease of the name, by which the protected resource refuses older holders.
package lockkeeper
