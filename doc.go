// Package lockkeeper provides distributed locks on Redis and Valkey. A lock is granted as a lease: it is renewed while its
// holder is alive, expires if the holder crashes, and notifies its holder when it is lost.
//
// This package has what all locks share. A [Keeper], one for each process, sends their commands by its
// go-redis client, renews their leases, and receives their wake-ups. The locks are in packages of their own:
//
//	mutex       one holder at a time, for the highest throughput
//	fair        one holder at a time, in order of arrival
//	rwlock      many readers or one writer
//	semaphore   at most n permits held at the same time
//	ratelimit   at most n permits in any window of time
//	once        a job that runs once per period, whichever process starts it
//	redlock     one holder at a time, on a majority of independent servers
//	election    one process that leads, decided by a mutex, a fair lock or a redlock
//	joblimit    limits for the workers of a job queue
//
// For example:
//
//	k, err := lockkeeper.New(rdb, nil)
//	defer k.Close()
//	m, err := mutex.New(k, "orders:42", nil)
//	err = m.Do(ctx, func(ctx context.Context, fence uint64) error {
//		return charge(ctx, order, fence) // ctx ends if the lock is lost
//	})
//
// Package admin lists, inspects and breaks the locks of all processes. Package lockkeepertest has a server and faults for tests
// of code that uses locks.
//
// What follows holds for all packages; each of them documents only what differs.
//
// # Names and options
//
// A constructor (mutex.New and so on) sends nothing. Its error matches [ErrInvalid] if the name is empty, is longer than 1024
// bytes, or has braces that would put its keys into several slots of a Redis Cluster, or if an option is out of range. Nil
// options mean the defaults, and so does the zero value of each field. A fraction of a millisecond is dropped. What a
// constructor returns is immutable and safe for concurrent use. The zero value of its type is not usable.
//
// # Leases
//
// Each acquisition returns a [Lease] of its own. It is identified by a token, a text that is stored in Redis, and it has a
// fence, a number that is larger than that of every earlier lease of the name. Locks are not re-entrant: a holder that locks
// again waits for itself.
//
// A lease is held until it is released by its holder, or lost, because the server no longer knows its token or its deadline
// passed. It is renewed after each third of its TTL, so its deadline passes only if the server cannot be reached, with
// NoRenewal, or after MaxLifetime. When it is lost, its contexts end, and its Err method returns the reason. The library never
// acquires it again by itself.
//
// # Acquiring
//
// Lock, RLock and Acquire wait until the lock is granted, until ctx ends, or until Redis has failed for longer than the
// keeper's [RetryPolicy] allows. When ctx ends, they return at once: the request leaves the queue in the background, and a
// grant that arrives meanwhile is released. TryLock, TryRLock and TryAcquire never wait for a holder; they block for a round
// trip, or for up to three attempts while Redis fails. After any error nothing is held. The error matches
//
//   - ctx.Err() and [context.Cause] of ctx, if ctx ended the call, and also [ErrNotAcquired] if the lock was held elsewhere, or
//     [ErrUnavailable] if Redis did not answer,
//   - [ErrNotAcquired], from TryLock and the like: the lock is held elsewhere, or others are queued before the caller,
//   - [ErrUnavailable]: Redis gave no answer, or could not serve requests, until the keeper's [RetryPolicy] gave up,
//   - [ErrClosed]: the keeper was closed,
//   - *[NotAcknowledgedError]: the keeper has [Options.ReplicaAck], and replicas did not acknowledge the grant in time,
//   - an error reply of Redis that requires intervention, such as NOPERM or OOM, which is returned at once.
//
// [LockAll] acquires several locks, all or none.
//
// # Do
//
// Do acquires the lock, calls fn, and releases the lock, even if fn panics. It passes fn the lease's fence and a context that
// ends when the lease is lost; [LeaseFromContext] returns the lease of that context. If fn is nil, the error is [ErrInvalid].
//
// If the lock is not acquired, fn is not called, and the error is as above. Otherwise the error is that of fn, joined with that
// of the release: [ErrLost] if the lease was lost meanwhile, [ErrUnavailable] if the release was not answered.
//
// # Clocks
//
// The server uses its own clock, the process its monotonic clock: the deadline of a lease is counted from before the request
// was sent, less a margin for drift, so a holder never trusts the lease for longer than the server keeps it. Wall clocks need
// not agree. If the server's clock is set back, fences keep rising as long as the metadata of the name is there, for at least
// half of MetadataTTL after its last use.
//
// # What is not promised
//
// Redis replicates asynchronously, so a failover can lose a grant and give the lock to a second holder. A process may be
// paused between its last check of the lease and its write. A machine that is suspended together with its monotonic clock
// trusts a lease that may have ended, until its next renewal is answered. In these cases the fence protects: the resource
// remembers the largest that it has seen, and refuses smaller ones.
package lockkeeper

//go:generate go run ./internal/testing/optionsdoc
