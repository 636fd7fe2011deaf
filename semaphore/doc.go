// Package semaphore limits what many processes do together: so many calls at once, or so many in any window of time, or
// both.
//
// # Permits that are held
//
//	s, err := semaphore.New(k, "api", 10, nil)  // ten at once
//	lease, err := s.Acquire(ctx, 3)             // three of them; waits in line
//	defer lease.Release(ctx)
//
// Each acquisition is one lease over its permits, however many, with renewal, fence and loss signal as every lease. The
// permits of a process that has crashed come back when its lease ends, those of one that is frozen as well, and a second
// release changes nothing: there is no counter that could be wrong, only leases that are there or not.
//
// # Permits that return by the clock
//
//	s, err := semaphore.New(k, "api", 100, &semaphore.Options{Per: time.Second})
//
// A permit returns Per after it was taken, by the server's clock, and not before, whatever becomes of the caller. So no
// window of that length ever holds more than the limit, wherever it begins: no bursts of twice the limit, as with
// counters that start anew every second. What is returned for such a request is a receipt: it holds nothing, so it is
// never lost, has no deadline, and need not be released. What is done with it should be done at once: the server counts
// from when it gave the permit, and a service that counts for itself sees the call when it arrives. A Per that is a
// little longer than the service's own window makes up for the way there. AtOnce sets a second limit, of permits that are held at once,
// and then there are leases again.
//
// Since the server knows when permits return, it tells: a request whose context ends before it can be met is refused at
// once, and a try that is refused learns when to come back; see RateError.
//
// # Order
//
// Requests stand in one line, in the order in which they reached the server, and only the first of it may be granted. So
// one that asks for many permits is not starved by those that ask for few: these wait behind it, even if there is room
// for them. Who has crashed or is frozen is passed over as in package fair.
//
// # The limit
//
// The limits of the most recent caller are in force, so that a rolling deployment can change them; a caller counts when
// its limits are others than those of the caller before. SetLimit changes the limit for all, until then. Raising it
// lets waiters in at once. Lowering it takes no lease away; there is no room until enough have ended.
//
// So all processes should say the same. Two that differ for good change the limit at every turn, each against the other;
// Hooks.LimitChanged shows it. Limits of different things want names of their own. So does a limit of another kind, with
// Per where there was none or the other way round: what waits for permits of the old kind is let in at once when a caller
// of the new kind comes, for no limit is in force any more that it was to keep to.
package semaphore
