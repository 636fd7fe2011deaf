// Package mutex is a lock that one holder has at a time, for whom order does not matter and throughput does.
//
// # The key
//
// A mutex is one string key, prefix + name, whose value is the holder's token: what SET key token NX PX writes, as the
// Redis documentation describes it and most libraries write it
// (https://redis.io/docs/latest/develop/use/patterns/distributed-locks/). So a mutex and a lock of another library on
// the same key exclude each other, and a fleet can be moved over one service at a time. Beside it lie, in the same
// cluster slot and only while they are needed, a hash with the last fence and the queue of those who wait.
//
// # Waiting
//
// Of all goroutines of a process that wait for one name, one stands in line at the server; so a release wakes one
// process, and the commands per acquisition do not grow with the number of waiters. The releasing script writes the
// next holder's token into the key and then sends it a message: the waiter runs without asking again. A newcomer that
// finds the key free may take it past the queue. If order matters, use package fair.
//
// A holder that is a client of another library sends no message when it releases. Then a waiter gets in at the moment
// the lease ends, or at its next heartbeat after the release (Options.HeartbeatInterval of the keeper, 2 s).
//
// # Failures
//
// A holder that crashes loses the lock when its lease ends; the first in line asks at that moment. A waiter that
// crashes is passed over. If the key is deleted or overwritten by hand, the holder is told at its next renewal.
package mutex
