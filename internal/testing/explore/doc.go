// Package explore searches small worlds exhaustively: two keepers with two to four requests, and a server that runs the real scripts. Where
// package proptest draws schedules, this one visits every order of the steps that its bounds allow, and so every state that can be reached. A
// state that breaks a promise is shown with the shortest path to it.
//
//	go test ./internal/testing/explore    # small bounds, and deliberate bugs that must be found
//	make explore                          # larger bounds, minutes
//
// A world is a value: the state of the server, of the keepers and their requests, and the calls and messages that are under way. What becomes
// of a request is decided by its claim.Claim, and when waiters send heartbeats by the queue.Queue of their keeper: the code that ships, of
// which this package is the driver. Its steps are: a request begins, or is cancelled, also as it is granted; a call runs at the server, and
// its reply arrives at once, later or never; a late copy of it runs; a message arrives or is lost; the timer of a lease fires; a lease is
// extended, converted or released; somebody else breaks it; the server says whether somebody has; the timer of a queue fires; a subscription
// breaks; a keeper is closed; a process crashes or freezes; time passes. A keeper that freezes for a while needs no step: its steps come late.
// Leases and heartbeats end as time passes.
//
// The name of each case has its bounds, such as 3_requests,_2000_ms,_1_fault. They are counted per path. Leases and heartbeats last for 2 s,
// and time passes in steps of a second. States are recognised by a hash of 64 bits. The test logs how many there were.
//
// # Promises
//
// In each state:
//   - No two processes rely on leases that exclude each other.
//   - Once a request is over and its cleanup was answered, the server has neither a lease nor a place of it, nor of one that was broken,
//     and no lease writes by it.
//   - Who does not count on its subscription is not passed over by one behind it.
//   - A waiter is rejected only if it was cancelled, closed or broken, or if another upgrade waits.
//   - No claim gets an event that cannot come in its state.
//   - If there are no more faults from here on, every live request is served within 4 s: a lease of a process that is gone, and a heartbeat
//     timeout for all waiters that are. Nobody waits for a free lock for longer than a heartbeat interval.
//
// # Not searched
//
// Heartbeats of more than a thousand waiters, two heartbeats of one keeper under way at once, waiters that ask again before the next
// heartbeat is due (all times are multiples of its interval), subscriptions that are replaced since a message did not come or that are
// counted on again, pauses between attempts, leases that are not renewed or have a longest lifetime, parts of a redlock, permits that
// return by the clock, adoption, servers that fail, clocks that are set, the local queue of a mutex, leases that the
// callers of a process share, more than four late copies or six messages at once.
//
// # The server
//
// The server's states, calls, replies and messages are numbered, and a script that ran once in a state is not run again: its outcome is
// remembered. So a search of millions of states runs some ten thousand scripts.
package explore
