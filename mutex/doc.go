// Package mutex provides a distributed mutex: a lock that one holder has at a time, for use where throughput matters and order
// does not.
//
//	m, err := mutex.New(k, "orders:42", nil)
//	…
//	err = m.Do(ctx, func(ctx context.Context, fence uint64) error {
//		return charge(ctx, order, fence) // ctx ends if the mutex is lost
//	})
//
// Package [github.com/lockkeeper/lockkeeper] documents leases, fences, errors, and the options that all locks share.
//
// # The key
//
// A mutex is one string key, prefix + name, whose value is the holder's token. SET key token NX PX writes the same, as the
// Redis documentation describes it (https://redis.io/docs/latest/develop/use/patterns/distributed-locks/) and as most libraries
// do. So a mutex and a lock of another library on the same key exclude each other, and a fleet can be migrated one service at a
// time. In the same cluster slot, and only while they are needed, are a hash with the last fence and the queue of waiters.
//
// # Waiting
//
// Of all goroutines of a process that wait for one name, one is queued at the server. So a release wakes one process, and the
// number of commands per acquisition does not grow with the number of waiters. The script that releases the mutex writes the
// next holder's token into the key and then publishes a message, so the waiter runs without asking again. A newcomer that finds
// the key free may acquire it before those in the queue. If order matters, use package fair.
//
// # Other libraries
//
// A holder that is a client of another library publishes no message when it releases. A waiter then acquires the mutex at the
// end of that holder's lease, or at the waiter's next heartbeat after the release (HeartbeatInterval of the keeper's Options, 2 s).
//
// In the other direction, clients of other libraries ask for the key now and then. While callers of Lockkeeper wait, each release
// grants the mutex to one of them in the same step, so the others hardly ever find the key free. With Options.Yield a release
// leaves it free for that time, unless one has done so within nine times as long before. Meanwhile no process that uses Lockkeeper
// is granted the mutex, whatever its options, and TryLock fails with ErrNotAcquired. Set Yield in all processes, to the longest
// retry delay of the others, such as 250 ms for redsync. Then they find the key free at least once in ten times Yield, and at most
// a tenth of the time is lost.
//
// # Retained leases
//
// With Options.Retain a process keeps the lease at the server when its holder releases the mutex, and grants the mutex to its own
// callers, one after the other, without asking the server, until another process asks for it. Use it where one process takes the
// same mutex again and again.
//
// One caller holds the mutex at a time, as always, and the waiting callers of the process are served in order. Their leases are
// turns of the one lease at the server: they have its token, deadline and fence, and a turn is lost if that lease is lost. So a
// store must accept equal fences, and cannot reject a late write of an earlier turn of the same process: a holder must not release
// the mutex before its writes have been answered. If that cannot be ensured, do not set Retain.
//
// The TTL of the lease at the server is the shorter of TTL and 5 s. The lease is renewed while it is used, and released when it has
// not been used for that time.
//
// Another process that waits makes the server recall the lease: no further turn is granted, and the Release of the current holder
// releases the lease at the server. If the process is frozen or cut off, the others wait until the lease has expired. TryLock of
// another process fails and recalls the lease, so that the next TryLock succeeds if nobody holds the mutex; TryLock of this process
// fails without asking the server while a caller of this process holds the mutex. A process without a subscription grants no turns.
//
// After a recall the process retains no lease of the name for about nine times as long as the recall took, at least 20 ms and at
// most a minute, and afterwards only if it takes the mutex about 20 times as often as it is recalled. A keeper retains leases of at
// most 10,000 names, those that it used last.
//
// Clients of other libraries cannot recall a lease: for them the mutex is held until it has not been used for the lease's TTL. Do
// not set Retain where they contend.
//
// # Failures
//
// A holder that crashes loses the mutex when its lease ends; the first three waiters retry at that moment. A waiter that
// crashes is skipped. If the key is deleted or overwritten by hand, the holder loses its lease at its next renewal.
package mutex
