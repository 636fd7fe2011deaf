// Package fair provides a FIFO lock: a lock that one holder has at a time, and that is granted in the order in which the server
// queued the requests, whichever process they came from.
//
//	l, err := fair.New(k, "customer:7", nil)
//	…
//	lease, err := l.Lock(ctx) // waits in the queue
//	…
//	defer lease.Release(ctx)
//
// Package [github.com/lockkeeper/lockkeeper] documents leases, fences, errors, and the options that all locks share.
//
// # Order
//
// Every request that cannot be granted at once draws a ticket, from a counter at the server, and joins one queue. TryLock never
// overtakes waiters, nor does a newcomer that finds the lock free while others wait. A waiter keeps its place however long it
// waits, as long as it sends heartbeats.
//
// # Waiting
//
// A waiter sends a heartbeat every HeartbeatInterval (2 s) of its keeper. Its turn comes when nobody before it is left: the
// script that releases the lock writes the waiter's grant and publishes a message, so the waiter runs without asking again. A
// waiter leaves the queue when its context ends; if it is granted the lock at the same moment, that grant is released.
//
// A waiter whose process has crashed is skipped at once, because nobody receives the message; one whose heartbeat has expired
// is skipped, too. A process that reconnects before its heartbeat expires keeps its place. One that was away for longer than
// HeartbeatTimeout (6 s), or was disconnected before it learned its place, goes to the end of the queue.
//
// A process that is frozen when its turn comes still has a subscription, as far as the server can tell. It is granted the lock
// for what is left of its heartbeat timeout and no longer. So waiters that are frozen at one moment delay the queue by at most
// one HeartbeatTimeout in total.
//
// # Failures
//
// A holder that crashes loses the lock when its lease ends, by the server's clock. The first three waiters know when that will
// be and retry at that moment. If a message is lost, the waiter's next heartbeat finds the grant.
//
// If Redis loses its data, or its clock jumps ahead by more than is left of a heartbeat, each waiter rejoins at its place with
// its next heartbeat. Until then the server does not know the waiter. So if the lock is free, as it is if its lease was lost as
// well, somebody further back may be granted it first.
//
// # Keys
//
// {prefix + name}:fair:holders is a string, the holder's token, which expires with the lease. Beside it are a hash with the
// last fence and ticket, and the queue and heartbeats of the waiters. The [protocol] has the details.
//
// [protocol]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/protocol.md
package fair
