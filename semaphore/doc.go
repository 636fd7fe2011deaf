// Package semaphore bounds what many processes do at the same time: permits that are held.
//
//	s, err := semaphore.New(k, "encoders", 10, nil)  // ten at once
//	lease, err := s.Acquire(ctx, 3)                  // three of them; waits in the queue
//	defer lease.Release(ctx)
//
// Each acquisition is one lease over its permits, however many, with renewal, fence and loss signal as every
// [lockkeeper.Lease]. The permits of a process that has crashed or is frozen return when its lease ends, and a second
// release changes nothing: there is no counter that could be wrong, only leases that exist or do not.
//
// For a limit per time, and for both limits together, see package ratelimit.
//
// # Order
//
// Requests are served in the order in which they reached the server, and only the first in the queue can be granted. So a
// request for many permits is not starved by requests for few: these wait behind it, even if there are enough for them.
// Waiters that have crashed or are frozen are passed over as in package fair.
//
// # The limit
//
// The limit of the most recent caller is in force, so that a rolling deployment can change it; a caller counts if its limit
// differs from that of the caller before it. SetLimit changes the limit for all until then. Raising it admits waiters at
// once. Lowering it ends no lease; nothing is granted until enough have ended. All processes should use the same limit: two
// that differ change it back and forth, which Hooks.LimitChanged reports. Use different names for different limits.
package semaphore
