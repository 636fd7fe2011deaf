// Package explore searches small worlds exhaustively: two keepers with two or three requests, and a server that runs the real scripts. Where
// package proptest draws schedules, this one visits every order of the steps that its bounds allow, and so every state that can be
// reached. A state that breaks a promise is shown with the shortest path to it.
//
//	go test ./internal/testing/explore    # small bounds, and deliberate bugs that must be found
//	make explore                          # larger bounds, minutes
//
// A world is a value: the state of the server, of the keepers and their requests, and the calls and messages that are under way. What becomes
// of a request is decided by its claim.Claim, and of a lease that its process retains by its retain.Lease: the same code as in the engine, of
// which this package is the driver. Its steps are: a request begins, or is cancelled, also as it is granted; a call runs at the server, and its
// reply arrives at once, later or never; a late copy of it runs; a message arrives or is lost; the timer of a lease fires; a lease is
// extended, converted or released; somebody else breaks it; a heartbeat is sent; a subscription breaks; a keeper is closed; a process
// crashes or freezes; time passes. A keeper that freezes for a while needs no step: its steps come late. Leases and heartbeats end as time
// passes. With retained leases, callers also enter and leave inside a process, and a message about a recall may arrive twice.
//
// Where things are:
//
//	search.go         the search, breadth first, and the check that everybody is served
//	world.go          worlds, their bounds and the promises
//	steps.go          the steps that are possible, and what they do
//	driver.go         what takes the place of the driver: claims, replies, messages
//	convert.go        requests that replace a lease
//	retention.go      leases that a process retains, and who is inside
//	describe.go       what the steps of a path are called
//	server.go         states of the server, and the calls of scripts
//	interpreter.go    runs a script
//	store.go          the commands that scripts use; store_test.go compares it with the embedded server
//	explore_test.go   what is searched
//	mutants_test.go   the deliberate bugs
//
// The server's states, calls, replies and messages are numbered, and a script that ran once in a state is not run again: its outcome is
// remembered. So a search of millions of states runs some ten thousand scripts.
package explore
