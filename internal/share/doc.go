// Package share lets the callers of a process pass on one lease for a bounded time, the option Linger of mutexes, read-write locks and
// semaphores:
//
//   - Sharing (share.go) is a lock with Linger: it grants a caller a lease that the process shares, or asks the server for another one.
//   - name (name.go) is what the callers of one name have in common while one of them has a lease or waits: which lease is shared, and who
//     waits for it.
//   - shared (shared.go) is one lease, and who is inside: the callers who have it. It is shared until Linger has passed since its grant.
//     Whoever is the last inside after that releases it.
//   - Lease (lease.go) is what a caller gets.
//
// To the server, and to packages keeper and lease, a shared lease is that of one caller.
//
// Mutexes: that of a name is taken before that of Names. No other is taken under either of them.
package share
