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
// # Linger
//
// With Options.Linger a process may pass its lease to its own next callers, one after the other, without the server, until Linger has
// passed since the lease was granted. Then the caller that has the mutex releases the lease, or the process does if nobody has it.
// Others wait for at most Linger longer. Callers that wait in the process are served in order of arrival; those that are left when
// Linger has passed ask the server, behind the processes that are queued there.
//
// Use it where a process takes the same mutex many times in a row: with 10 ms it sends about 200 commands a second, however often
// it locks. Do not use it where processes take the mutex in turns, because each would wait for the Linger of the one before.
//
// Callers that share a lease have its token, deadline and fence, and lose it together. So a store must accept equal fences, and
// cannot reject a late write of an earlier caller of the same process: release the mutex only when its writes have been answered. If
// that cannot be ensured, do not set Linger.
//
// TryLock fails without asking the server while another caller of the process has a lease that lingers. Extend and Adopt return
// ErrInvalid. A process that crashes or freezes keeps others out until its lease ends, as any holder does.
//
// # Failures
//
// A holder that crashes loses the mutex when its lease ends; the first three waiters retry at that moment. A waiter that
// crashes is skipped. If the key is deleted or overwritten by hand, the holder loses its lease at its next renewal.
package mutex
