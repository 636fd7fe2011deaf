// Package retain has what a process needs to grant reads, or turns of one holder at a time, inside, while it holds one lease at the
// server for all of them:
//
//   - Hold (hold.go) is the local part of one such lease: who is inside, and whether another may enter. Entering and leaving
//     take an atomic add each and a look at the clock.
//   - Policy (policy.go) says of a name when a lease is worth retaining.
//   - Tick (policy.go) says of a lease whether to renew it or to give it back.
//   - Names (names.go) bounds how many names a process keeps.
//
// It knows nothing of Redis, starts no goroutine and sets no timer. Policy, Tick, Hears and InTime are pure functions of state and event.
package retain
