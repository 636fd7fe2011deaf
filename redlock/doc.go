// Package redlock is a mutex on the majority of several independent Redis servers: no single server is needed, and none
// can give the lock away by losing its data. It is the algorithm of
// https://redis.io/docs/latest/develop/use/patterns/distributed-locks/ with fences, renewal and an account of what each
// server said.
//
// # Servers
//
// Each server has a keeper. There are 1, 3, 5 or 7 of them, or any other odd number, and all processes must name the same
// ones. They must not be replicas or shards of each other, and each counts once: that two keepers reach the same server
// cannot be seen from here. A majority is more than half, so of 3 servers one may be down, and of 5 two.
//
// On each server the lock is what package mutex writes: one string key, prefix + name, whose value is the holder's
// token. So a lock of another library that uses the same servers and keys in the same way, as redsync does with several
// pools, and a lock of this package exclude each other. A mutex of package mutex on one of the servers holds that server's
// part of the lock, so give the two different names.
//
// # Taking it
//
// All servers are asked at once. The lease is there as soon as a majority has granted it and is certain about the
// fence, whatever the others do; their answers are taken in the background and count from then on, however late they
// come. If no majority has come about within Options.ServerTimeout, the attempt has failed, and everything is given back
// everywhere, also where the answer was never seen: a request that is still under way is buried, so that it gets
// nothing when it arrives.
//
// There is no queue: whoever finds the lock taken tries again after a random pause, which grows up to Options.MaxRetryDelay, or
// when the leases in the way end. Of the goroutines of one process that wait for one name, one does so. For an order, or
// for hand-offs without a pause, use package fair on one server.
//
// # Holding it
//
// The lease at each server is renewed at a third of the ttl. The deadline is until when a majority is certain: of 3
// servers' deadlines the second largest. When it passes, or when so many servers say that the lease is gone that no
// majority is left, the lease is lost. A server that did not grant the lease at first, or has lost it, is asked for it
// again while a majority holds; so a lease outlives restarts of all its servers, one after the other.
//
// Extend and Release return when a majority has confirmed them; at the other servers they go on in the background. A
// lease is also released when any of its keepers is closed.
//
// # The fence
//
// Each server gives a fence of its own. The lease has the largest of its majority, and a majority of servers has been
// made to go on from that number before the lease is handed out. Any later majority shares a server with this one, so
// its fence is strictly larger, however the servers' clocks differ. Usually the servers agree at once, because the
// request names a number that is just ahead of all their clocks, as far as they are known; otherwise it costs another
// round trip.
//
// # What is not promised
//
// A server that restarts without its data gives its part of the lock away, and as many of those as are needed for a
// majority, within one ttl, give away the lock. Options.MinUptime keeps a server that has restarted out for a while. A
// server's clock that jumps ahead by a ttl ends its part of the lock early, with the same effect. A holder that is
// paused between its look at the lease and its write can be late with any lock, and only a store that checks fences is
// safe from it: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
package redlock
