// Package ahead is the option Ahead of rate limits: it takes blocks of permits from the server and grants them inside the process, and it refuses
// inside for as long as the server has said that there are none. In order:
//
//   - Package ratelimit calls Take or TryTake of the Permits of a name and its limits (permits.go), which needs no mutex while a Block has
//     permits (block.go) or a refusal is in force.
//   - Otherwise a caller begins to fetch a block, and others wait for it; or each asks the server itself, if a block is not worth while. Stock
//     decides that and the size (stock.go; pure, as package claim is).
//   - A block ends by a timer. If none of its permits was used, the server gets them back.
//   - Changed (Names): after a change of the limit or a pause, nothing is granted or refused by earlier answers.
//
// Mutexes: that of a Permits is taken before those of packages keeper, server, timers and transport, since a block is given back under it.
// Under that of Names, no other is taken.
package ahead
