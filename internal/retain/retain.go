// Package retain has what a process needs to grant reads, or turns of one holder at a time, inside, while it holds one lease at the
// server for all of them:
//
//   - Lease (lease.go) is one such lease: a state machine that takes an event and the time, and says what is to be done.
//   - Hold (hold.go) is who is inside by it, and whether another may enter. Entering and leaving take an atomic step each and a look
//     at the clock. The steps are those of word (word.go).
//   - Name (name.go) is what the process remembers of a name, and Policy (policy.go) says when a lease is worth retaining.
//   - Names (names.go) bounds how many names a process keeps.
//
// It knows nothing of Redis, starts no goroutine and sets no timer. All but Hold and Names is pure, as package claim is: a Hold is the
// lock-free word of the fast path, which callers share without the driver.
package retain
