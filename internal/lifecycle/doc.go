// Package lifecycle has what all leases have in common for their holders, however they came about: the end, which happens once, and the
// contexts and channels that end with it (lifecycle.go), several leases that are held together (group.go), and a look at those that nobody
// can release any more (leak.go). It knows nothing of tokens, requests or servers but the errors of package server.
//
// Nothing is called under a Lifecycle's Mu, which is taken after the mutexes of those that have one.
package lifecycle
