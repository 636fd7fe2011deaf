// Package lifecycle is what every lease, of package keeper, share or quorum, has for its holder. In order: a lease calls Begin; its holder calls
// Err, Done and Context, which check the deadline each time; the lease ends once, by End or EndLocked, and then its contexts (lifecycle.go).
// A Group ends with the first of its leases (group.go). A lease that nobody can release any more is reported (leak.go).
//
// Mutexes: a Lifecycle's Mu, under which this package calls neither a lease nor a function that it was given. Package keeper also guards its
// leases by Mu, and says which mutexes it takes under it. Package quorum takes Mu after the mutex of its own lease.
package lifecycle
