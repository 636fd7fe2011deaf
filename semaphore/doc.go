// Package semaphore limits how many things the processes of a system do at the same time. Each holds permits while it does
// one.
//
//	s, err := semaphore.New(k, "encoders", 10, nil)  // ten at once
//	lease, err := s.Acquire(ctx, 3)                  // three of them; waits in the queue
//	defer lease.Release(ctx)
//
// Each acquisition is one lease over its permits, however many, with renewal, fence and loss signal as every
// [lockkeeper.Lease]. The permits of a process that has crashed or is frozen return when its lease ends, and a second
// release changes nothing: the permits that are held are the sum of the leases, and not a counter that could be wrong.
//
// For a limit per time, and for both limits together, see package ratelimit.
//
// # Order
//
// Requests are served in the order in which they reached the server, and only the first in the queue can be granted. So a
// request for many permits is not starved by requests for few: these wait behind it, even if there are enough for them.
// Waiters that have crashed or are frozen are skipped as in package fair.
//
// # The limit
//
// One limit is in force for all processes. A call whose limit differs from that of the call before it, of any process, puts
// its own in force, so that a rolling deployment can change it; SetLimit does so at once. Raising it admits waiters.
// Lowering it ends no lease; nothing is granted until enough have ended. All processes should use the same limit: two that
// differ change it back and forth, which Hooks.LimitChanged reports. Use different names for different limits.
package semaphore
