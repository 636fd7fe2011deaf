// Package lockkeeper provides distributed locks on Redis and Valkey. A lock is granted as a lease: it is renewed while its
// holder is alive, expires if the holder crashes, and notifies its holder when it is lost.
//
// This package has what all locks share. A [Keeper], of which a process creates one, sends their commands by the process's
// go-redis client, renews their leases, and receives their wake-ups. A [Lease] is what a successful Lock returns. The locks are
// in packages of their own:
//
//	mutex       one holder at a time, for the highest throughput
//	fair        one holder at a time, in order of arrival
//	rwlock      many readers or one writer
//	semaphore   at most n permits held at the same time
//	ratelimit   at most n permits in any window of time; httplimit, below it, is for net/http
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
// Package admin is for operators: it lists, inspects and breaks the locks of all processes. Package lockkeepertest has a server
// and faults for tests of code that uses locks.
//
// The rest of this comment holds for all packages; each of them documents only what differs.
//
// # Names and options
//
// A constructor (mutex.New and so on) sends nothing. Its error matches [ErrInvalid] if the name is empty, is longer than 1024
// bytes, or has braces that would put its keys into several slots of a Redis Cluster, or if an option is out of range. Nil
// options mean the defaults, and so does the zero value of each field. Options are copied. What a constructor returns is
// immutable and safe for concurrent use by any number of goroutines. The zero value of its type is not usable.
//
// Most options have these fields:
//
//   - TTL: how long a lease lasts without renewal, and so how long a crashed holder keeps others out. From 10 ms to 365 days,
//     in whole milliseconds; a fraction is dropped. Default 30 s ([DefaultTTL]).
//   - NoRenewal: leases are not renewed, and end after TTL unless they are extended. By default they are renewed in the
//     background after each third of TTL.
//   - MaxLifetime: a lease is not renewed beyond this, which bounds how long a holder that hangs keeps others out. An Extend
//     beyond it is refused. At least TTL. Default 0: no bound.
//
// # Leases
//
// Each acquisition returns a lease of its own. It is identified by a token, a text that is stored in Redis, and it has a fence,
// a number that is larger than that of every earlier lease of the name ([Lease.Fence]). Locks are not re-entrant: a holder that
// locks again waits for itself.
//
// A lease is held until it is either released by its holder, or lost: because the server no longer knows its token, or because
// its deadline passed. A deadline passes without a renewal if the server cannot be reached, with NoRenewal, or after
// MaxLifetime. Then the lease's contexts end, and its Err method returns the reason. A lease that has ended stays ended: the
// library never acquires it again by itself.
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
// With [Options] LongWait the keeper logs a warning when a call has waited for longer than that. The warning names the lock, its
// holder, and since when it is held, for which the keeper asks the server once. However many calls wait for a lock, one warning is
// logged per LongWait.
//
// [LockAll] acquires several locks, all or none. [Locker] is the interface that locks of all kinds have in common.
//
// # Do
//
// Do acquires the lock, calls fn, and releases the lock, even if fn panics. It passes fn the lease's fence and a context that
// ends when the lease is lost; [LeaseFromContext] returns the lease of that context. If fn is nil, the error is [ErrInvalid], and nothing
// is acquired.
//
// If the lock is not acquired, fn is not called, and the error is as above. Otherwise the error is that of fn, joined with that
// of the release: [ErrLost] if the lease was lost meanwhile, [ErrUnavailable] if the release was not answered. While Redis does
// not answer, the release blocks until ctx or the lease ends; if ctx has ended before, for at most a second.
//
// # Adopt
//
// Adopt makes a lease from the token of one that is held, in another process or after a restart, and extends it to the whole
// TTL. Both leases then refer to the same grant. So the former holder must stop using its own, and should have acquired it with
// NoRenewal. It must not close its keeper before its own lease has ended, since [Keeper.Close] releases the grant for both.
//
// Adopt blocks as [Lease.Extend] does and then, if the keeper has [Options.ReplicaAck], until replicas have the lease. The
// error matches [ErrLost] if the token no longer holds the lock. After any other error the former holder holds the lease as
// before, or for longer.
//
// # Holders and waiters
//
// Holder, Holders and Waiters read who holds a lock and who waits for it, in all processes. They change nothing. They block for
// a round trip per 500 entries, and make up to three attempts. An entry that is added or removed meanwhile may be missing. The
// error matches ctx.Err(), [ErrUnavailable] or [ErrClosed], or is an error reply of Redis.
//
// The owner of an entry is the label of its keeper ([Options] Owner). It is stored in Redis once per keeper, with the first request
// and every ten minutes of use, for 24 hours at a time.
//
// # Clocks
//
// The server uses its own clock: every change of a lock is one Lua script, and the only time in it is Redis TIME. The process
// uses its monotonic clock: a lease is valid until a deadline that is counted from before the request was sent, less a margin
// for drift, so a holder never trusts the lease for longer than the server keeps it. Wall clocks are not used and need not
// agree. If the server's clock is set back, fences keep rising as long as the metadata of the name is there, which is kept for at
// least half of MetadataTTL after its last use; not every use extends its expiry.
//
// The exception is a process that is suspended together with its monotonic clock, as in a paused virtual machine: until its
// next renewal is answered, it trusts a lease that may have ended. Then only the fence protects.
//
// # What is not promised
//
// Redis replicates asynchronously, so a failover can lose a grant and give the lock to a second holder. And a process may be
// paused between its last check of the lease and its write. In both cases the fence protects: the protected resource remembers
// the largest fence that it has seen and refuses smaller ones.
package lockkeeper

//go:generate go run ./internal/testing/optionsdoc
