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
// The first page lists the names that are held or waited for; it can be searched, filtered, and sorted by any column. The page
// of a name shows its holders with the time left of their leases, its queue with the waiters whose heartbeats have stopped, its
// last fence and, for a semaphore or a rate limit, how much of it was used in the last minutes. Open pages are updated
// continuously; without JavaScript they show the state at the time of the request. The first page also says what the process that has the
// keeper does with it (Keeper.Stats), if it does anything, also while Redis does not answer.
//
// # Load on Redis
//
// The list, and each name whose page is open, is read at most once per Options.Interval, however many browsers are open.
// Nothing is read while no page is open. After a read that took long, the handler pauses for at least three times as long. The
// list is read by SCAN over all keys of the database, so give locks a database of their own if there are millions of other
// keys.
//
// # Security
//
// Pages show names, owners and queues to everybody who reaches them, so set Options.Authorize or mount the handler behind
// something that authenticates. Pages never contain tokens. They are read-only unless Options.AllowBreak is set. Then users
// whom this function allows can break locks, that is, end leases and remove waiters, by requests from the handler's own pages
// (http.CrossOriginProtection). The function returns the user's name, for the log and as the By of package admin's BreakOptions. It
// is called after Authorize, for the page of a name and for each request to break. If it returns an error, the page has no buttons,
// and the answer to the request is 403 with the text of the error. Each request to break is logged.
//
// Pages use no content of other origins and no inline scripts or styles, and forbid both with a Content-Security-Policy.
package inspector
