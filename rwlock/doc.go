// Package rwlock is a lock that many may hold for reading at the same time, or one for writing: for caches that are read
// far more often than they are rebuilt.
//
// # Who gets in
//
// Readers hold it together; a writer holds it alone. Writers are preferred: readers that come while a writer waits stand
// behind it, so it gets in as soon as the readers that were there before have left or their leases have ended. Writers
// among themselves are served in order, and so are readers. So that readers do not starve either,
// Options.WriterStreak bounds how many writers in a row may pass readers that wait; after that, all readers that wait
// at the time go first. A try never passes those who wait, except that nobody is before a reader who need not wait.
//
// # Leases
//
// Every reader has a lease of its own, with a token, a fence, renewal and a loss signal; one that crashes loses its own
// share and no more. There are no counters that a crash could leave wrong: the readers are a sorted set of leases, each
// with its end. Fences rise over readers and writers alike, so every read lease that was granted after a write lease has
// a larger fence than it.
//
// A write lease can become a read lease ([Lock.Downgrade]) without a gap, and a read lease a write lease
// ([Lock.Upgrade]) when no other reader is left. The lock is not re-entrant: whoever waits for a write lease while
// holding a read lease of the same lock waits for itself, unless by Upgrade.
//
// # Failures
//
// A waiting writer that crashes is found out by the next request or release, and at a heartbeat (2 s) at the latest: it
// has no subscriber any more. One that is frozen holds readers up until its heartbeat lapses (6 s). All else is as in
// package fair.
//
// # Keys
//
// {prefix + name}:rwlock:holders, a zset of leases by the time at which they end; beside it a hash with small facts, and
// the queue and heartbeats of those who wait. docs/protocol.md has the whole protocol.
package rwlock
