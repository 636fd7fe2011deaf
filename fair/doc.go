// Package fair is a FIFO lock: requests are granted in the order in which the server queued them, whichever process they
// came from.
//
// # Order
//
// Every request that cannot be granted at once draws a ticket, from a counter at the server, and joins one queue. A try
// never overtakes waiters, nor does a newcomer that finds the lock free while others wait. A waiter keeps its place
// however long it waits, as long as it sends heartbeats.
//
// # States of a waiter
//
// A waiter sends a heartbeat every HeartbeatInterval (2 s) of its keeper. It is granted the lock when all before it are
// gone: the script that releases the lock writes the grant and publishes a message, and the waiter runs without asking
// again. It leaves the queue when its context ends; if it is granted the lock at the same moment, that is released. It
// is skipped if its process has crashed (at once, because nobody receives the message), or if its heartbeat has
// expired. A process that reconnects before that keeps its place; one that was away for longer than HeartbeatTimeout
// (6 s), or was disconnected before it learned its place, goes to the end of the queue.
//
// A process that is frozen when its turn comes still has a subscription, as far as the server can tell. It is granted the
// lock for what is left of its heartbeat timeout and no longer, so waiters that are frozen at one moment delay the queue by at
// most one HeartbeatTimeout in total.
//
// # Failures
//
// A holder that crashes loses the lock when its lease ends, by the server's clock; the first three waiters know when
// that will be and retry at that moment, the others do not. If a message is lost, the waiter's next heartbeat finds the
// grant. If Redis loses its data, or its clock jumps ahead by more than is left of a heartbeat, each waiter rejoins at
// its place with its next heartbeat. Until then the server does not know it, and if the lock is free, which it is if
// its lease was lost as well, a waiter behind it may be granted the lock first.
//
// # Keys
//
// {prefix + name}:fair:holders is a string, the holder's token, which expires with the lease; beside it are a hash with the
// last fence and ticket, and the queue and heartbeats of the waiters. docs/protocol.md has the whole protocol.
package fair
