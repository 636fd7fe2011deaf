// Package semaphore provides a counting semaphore: all processes together hold at most n permits at the same time.
//
//	s, err := semaphore.New(k, "encoders", 10, nil) // ten permits
//	…
//	lease, err := s.Acquire(ctx) // waits in the queue for one of them
//	…
//	defer lease.Release(ctx)
//
// Methods whose names end in N acquire n permits in one step; the others acquire one. For a limit per time, and for both limits
// together, see package [github.com/lockkeeper/lockkeeper/ratelimit]. Package [github.com/lockkeeper/lockkeeper] documents
// keepers, leases, and errors.
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
// Waiters that have crashed are skipped; those that are frozen at one moment delay the queue by at most one HeartbeatTimeout of
// their keeper (by default 6 s) in total.
//
// # The limit
//
// One limit is in force for all processes. A call whose limit differs from that of the call before it, of any process, puts its
// own in force, so that a rolling deployment can change the limit; SetLimit does so at once. Raising the limit admits waiters.
// Lowering it ends no lease; nothing is granted until enough permits have returned. All processes should use the same limit:
// two that differ change it back and forth, which Hooks.LimitChanged reports. Use different names for different limits.
//
// # Linger
//
// With Options.Linger a lease that is released goes to the next caller of the process that wants as many permits, without the
// server, until Linger has passed since the lease was granted. If nobody has it then, the process releases it; if somebody has it, their
// Release does. Others wait for at most Linger longer. Use it where a process takes the same number of permits again and again for a
// short time: with 10 ms each lease costs about 200 commands a second at most.
//
// A lease has one holder at a time. Those that follow each other have the same token, deadline and fence. A lease that nobody has
// counts as held, which Available and Holders show. While a caller of the process is queued at the server, no lease lingers: it is
// released with its holder's Release. SetLimit ends no sharing: a limit that was lowered is reached when leases have ended. Extend
// and Adopt return ErrInvalid. If a process crashes or freezes, others wait until its leases end.
package semaphore
