// Package views looks at locks by name, whichever keeper holds them, and breaks them. It reads them from the server, and knows no lease or
// request of this process. Package admin calls List, Inspect and Break, the front ends Holders and Waiters, and package keeper LongWaits:
//
//   - List finds names by SCAN (list.go), and looks up how many hold and wait for each of them (lookup.go).
//   - Holders and Waiters read a lock's leases and queue in pages (inspect.go); Inspect reads both, and the limits (inspection.go).
//   - Break inspects a lock, then ends its queue entries and leases one by one (break.go).
//   - LongWaits logs who keeps a caller waiting for long (longwait.go).
//
// Mutexes: only that of LongWaits, under which nothing is called.
package views
