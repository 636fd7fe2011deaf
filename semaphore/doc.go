// Package semaphore provides a counting semaphore: all processes together hold at most n permits at the same time.
//
//	s, err := semaphore.New(k, "encoders", 10, nil) // ten permits
//	…
//	lease, err := s.Acquire(ctx, 3) // three of them; waits in the queue
//	…
//	defer lease.Release(ctx)
//
// For a limit per time, and for both limits together, see package ratelimit. Package [github.com/lockkeeper/lockkeeper]
// documents leases, errors, and the options that all locks share.
//
// # Leases
//
// Each acquisition is one [lockkeeper.Lease] over all its permits, with a fence and renewal. The permits of a process that has
// crashed or is frozen return when its lease ends. A second release changes nothing: the number of permits that are held is the
// sum over the leases, and not a counter that could become wrong.
//
// # Order
//
// Requests are served in the order in which they reached the server, and only the first in the queue can be granted. So a
// request for many permits is not starved by requests for few: these wait behind it, even if there are enough permits for them.
// Waiters that have crashed or are frozen are skipped as in package fair.
//
// # The limit
//
// One limit is in force for all processes. A call whose limit differs from that of the call before it, of any process, puts its
// own in force, so that a rolling deployment can change the limit; SetLimit does so at once. Raising the limit admits waiters.
// Lowering it ends no lease; nothing is granted until enough permits have returned. All processes should use the same limit:
// two that differ change it back and forth, which Hooks.LimitChanged reports. Use different names for different limits.
package semaphore
