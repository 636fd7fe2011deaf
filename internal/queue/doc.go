// Package queue decides about the waiters of one name in this process: when they send heartbeats, together and in as few commands as
// possible, and what becomes of those that the server does not know.
//
// It is pure, as package claim is. A waiter is a claim of its own, which knows its place; a Queue knows only how many there are. The driver
// keeps the set of them, and picks the first one by the places. Timer settings are part of the Queue: it knows when its timer fires, so
// that an effect names only a time that is sooner.
//
// The queue in which callers of one process wait for a mutex (localQueues of package keeper) has no pure form: it is a linked list, and its only
// decision is one comparison. A caller that gives up as its turn comes hands the turn on.
package queue
