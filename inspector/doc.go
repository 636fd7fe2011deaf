// Package inspector serves web pages that show who holds locks, who waits for them, and how long they have waited. It is an
// http.Handler to mount in a program that has a keeper, next to its metrics and profiles; "lockkeeper inspect" serves the
// same pages from the command line.
//
//	h, err := inspector.New(k, &inspector.Options{Authorize: onlyStaff})
//	if err != nil {
//		return err
//	}
//	defer h.Close()
//	mux.Handle("/locks/", http.StripPrefix("/locks", h))
//
// The first page lists the names that are held or waited for, with search, filters and an order by any column. The page of a
// name shows its holders and what is left of their leases, its queue with the waiters whose heartbeats have stopped, its
// last fence and, of a semaphore or a rate limit, how much was used in the last minutes. Pages follow the server while they
// are open; without JavaScript they show the state at the time of the request.
//
// # Load on Redis
//
// The list is read at most once per Options.Interval, however many browsers are open, and so is each name whose page is
// open. Nothing is read while nobody looks. A look that takes long is followed by a pause of at least three times as long. Reading
// the list takes SCAN over all keys of the database, so give locks a database of their own if there are millions of other keys.
//
// # Security
//
// Pages show names, owners and queues to everybody who reaches them, so set Options.Authorize or mount the handler behind
// something that authenticates. Pages never contain tokens. They are read-only unless Options.AllowBreak is set: then holders
// can be ended and waiters removed, by requests that this function allows, that come from the handler's own pages
// (http.CrossOriginProtection), and that are logged.
//
// Pages use no content of other origins and no inline scripts or styles, and forbid both with a Content-Security-Policy.
package inspector
