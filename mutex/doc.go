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
// A holder that is a client of another library publishes no message when it releases. A waiter then acquires the mutex at the
// end of that holder's lease, or at the waiter's next heartbeat after the release (Options.HeartbeatInterval of the keeper, 2
// s).
//
// # Failures
//
// A holder that crashes loses the mutex when its lease ends; the first three waiters retry at that moment. A waiter that
// crashes is skipped. If the key is deleted or overwritten by hand, the holder loses its lease at its next renewal.
package mutex
