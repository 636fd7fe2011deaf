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
// # Retained permits
//
// With Options.Retain a lease that is released stays with its process, which grants it to its next caller that wants as many permits,
// without asking the server. Use it where one process takes the same few permits again and again for a short time. The TTL of such
// a lease is the shorter of TTL and 5 s; it is renewed while it is used, and released when nobody has used it for that time.
//
// The promise is the same: all processes together hold at most the limit, because the server counts the permits of retained leases
// as held, which Available and Holders show. A lease has one holder at a time. Its token, deadline and fence are those of the lease at
// the server, so holders of the same process that follow each other can have the same fence.
//
// A process holds and requests no more permits than New's limit at the same time, also if SetLimit has raised the limit. Beyond that,
// Acquire waits inside, in order of arrival, and TryAcquire is refused without asking the server. If the server has too few permits for
// somebody, in any process, it recalls what is retained: a lease that nobody uses is released at once, another one by the Release of its
// holder, and callers that wait inside then ask the server. Afterwards the process retains nothing of the name for about nine times as long as
// the recall took, at least 20 ms and at most a minute, and then only while it acquires about 20 times as often as it is recalled. A
// limit that is lowered below what is held recalls as well. If a process is frozen or cut off, others wait until its leases have
// expired. Without a subscription nothing is granted inside.
//
// Retain cannot be set together with NoRenewal or MaxLifetime, since a lease that is used by one caller after the other is renewed for
// as long as there are callers. The token of such a lease cannot be adopted.
package semaphore
