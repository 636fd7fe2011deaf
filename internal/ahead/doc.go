// Package ahead grants permits of a rate limit inside the process, from blocks of them that it takes of the server at once, the option Ahead of
// rate limits; and refuses inside for as long as the server has said that there are none:
//
//   - Permits (permits.go) is what grants them, for one name with certain limits; Names is all of them.
//   - Block (block.go) is permits that were taken at once, the lock-free word of the fast path, which callers share and which reads the clock.
//   - Stock (stock.go) decides how many to take. It is pure, as package claim is.
//
// Mutexes: that of Names is taken after that of Permits. Nothing is locked under them but the mutexes of package timers.
package ahead
