// Package lockkeeper is a toolkit of distributed locks on Redis and Valkey: token mutexes, FIFO locks, read-write
// locks, counting semaphores and rate limits, whose holders are told when they lose them.
//
// This package has what all of them share: the [Keeper], which owns the use of the connection, and the [Lease], which
// is what a successful Lock returns. The locks themselves are in the packages below it: mutex, fair, rwlock, semaphore
// and redlock; and package once runs a job once per period.
//
//	k, err := lockkeeper.New(rdb, nil)
//	defer k.Close()
//	m, err := mutex.New(k, "orders:42", nil)
//	err = m.Do(ctx, func(ctx context.Context, fence uint64) error {
//		return charge(ctx, order, fence)
//	})
//
// # What a lease is
//
// Every lock, permit and hold is a lease: it belongs to one token and ends by itself unless it is renewed. A keeper
// renews its leases in the background at a third of their time to live. A lease is held, and then, once and for good,
// either released, because its holder gave it back, or lost: the server said that it is gone, or its deadline passed
// while the server could not be reached. A lost lease is never taken again behind its holder's back.
//
// # Which clock decides
//
// At the server, its own: every transition is one Lua script, and the only time in it is Redis TIME. In the process,
// the monotonic clock: a holder believes its lease until a deadline that is counted from before the request was sent,
// less a margin for drift, so that it never believes longer than the server does. Wall clocks are not used and need
// not agree. A process that is suspended together with its monotonic clock (a paused virtual machine) is the
// exception: then only the fence protects.
//
// # What is not promised
//
// Redis replicates asynchronously, so a failover can lose a grant and give the lock to a second holder. And a process
// may be paused between its last look at the lease and its write. Against both there is the [Lease.Fence]: a number
// larger than that of every earlier lease of the name, for the protected resource to refuse older ones.
package lockkeeper
