// Package claim decides what becomes of one token. In order: its request asks for a lease (Asking) and may be queued (Waiting); it is granted the
// lease (Held; Unconfirmed after a message); the lease is renewed, until it is lost (Lost) or released (Releasing, Over). A Claim takes an event
// and the time, and says what is to be done (Step). Package keeper, the driver, does it and reports what happened, under the mutex of the lease.
//
// The package is pure: it knows no goroutine, channel, mutex, context, clock, random source, network or log, so that a table can test it and
// the search in internal/testing/explore can run it in every order of events. README.md has the states and, for each, the events
// that it reacts to; a test compares the two.
//
//	claim.go    Claim, its states, and Step
//	event.go    events, effects and reasons
//	request.go  asking and waiting
//	lease.go    held and unconfirmed: renewal, extension, loss; then lost and releasing
//	copies.go   what the server may have of a token, by the outcomes of the calls
//	time.go     deadlines, and whether a wake-up counts
package claim
