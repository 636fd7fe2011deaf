// Package share lets the callers of a process use one lease of the server, one after the other or together, for a bounded time: the option
// Linger of mutexes, read-write locks and semaphores. The server and package keeper know one holder. In order:
//
//   - A front end calls Acquire of its Sharing (share.go). If the name (name.go) has a shared lease, the caller enters it, and is inside. If
//     not, it asks the server for a lease by package keeper, and the process shares this one for Linger (shared, gate.go).
//   - The caller gets a Lease (lease.go). Its Release leaves the shared lease, and sends nothing while Linger lasts.
//   - When Linger is over, the shared lease is closed: nobody enters any more, and the last caller who leaves releases it at the server. It is
//     closed sooner if a writer, or a caller who needs more permits, would have to wait for it (exclusion).
//
// Mutexes: that of a name is taken before that of a lease (package keeper). Under that of Names, no other is taken.
package share
