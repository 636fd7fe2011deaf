// Package lease drives claims: it does what the claim of a token says (package claim), and reports to it what happened. A Lease exists from the
// request for it to the end of what it left at the server. It knows how its server is asked (package server), and not how a lease is acquired:
// what it needs until it is granted is a Request, of package keeper, above this one.
//
//	lease.go       Driver: the leases of a keeper. Lock: what the leases of a lock have in common. Lease and Request
//	effects.go     what is done after a step of a claim
//	renewal.go     renewals, and Extend
//	release.go     what Release does, and Cleanup: the release at the server, a tombstone, the record of once, the outcome of a conversion
//	conversion.go  a lease that is replaced by another one, or continued by it
//	loss.go        leases that the server does not have any more, and who has broken them
//	observer.go    who else is told of a lease: a lease at several servers, or one that callers of the process share
//	event.go       the events for hooks
//	leak.go        how many leases are logged that became unreachable
//
// # Locks
//
// Mutexes are taken in this order: that of a lease (its Lifecycle's Mu), the lease that it is to replace, Driver. Those of packages share,
// wait, server, timers, pubsub and transport, and of leakLog, come last: nothing of this package is locked under them. No mutex is held during
// a round trip, while a reply or a message is handled, or while a hook, an Observer or a Request is called, unless their methods say so. Fields
// that no mutex guards do not change once their struct is in use, unless they say so.
package lease
