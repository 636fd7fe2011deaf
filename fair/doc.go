// Package fair is a lock that is served strictly in order: whoever came first to the server gets it first, in whichever
// process.
//
// # Order
//
// Every request that cannot be granted draws a ticket, from a counter at the server, and stands in one queue. A try
// never passes those who wait, nor does a newcomer that finds the lock free while somebody waits. A live waiter is
// never moved back, however long it waits: what keeps its place is its heartbeat, not a time limit.
//
// # States of a waiter
//
// It waits, from the answer to its request on, and beats every HeartbeatInterval (2 s) of its keeper. It is granted the lock
// when all before it have gone: the script that releases the lock writes the grant and sends a message, and the waiter
// runs without asking again. It leaves, when its context ends; if that is at the very moment of the grant, the lock is
// given back and goes to the next. It is passed over, if its process has crashed (at once, because nobody hears the
// message), or if its heartbeat has lapsed. A process that lost its connection and is back before that keeps its place;
// one that was away for longer than HeartbeatTimeout (6 s), or was cut off before it learned of its place, stands at
// the end.
//
// A process that is frozen when its turn comes still hears, as far as the server can tell. It is granted the lock for
// the rest of its heartbeat and no longer, so all waiters that are frozen at one time cost the others at most one
// HeartbeatTimeout together.
//
// # Failures
//
// A holder that crashes loses the lock when its lease ends, by the server's clock; the first three in line were told
// when that would be and ask at that moment, the others stay quiet. If a message is lost, the waiter's next heartbeat
// finds the grant. If Redis loses its data, or its clock jumps ahead by more than a heartbeat has left, each waiter comes
// back to its place with its next heartbeat. Until then the server does not know of it, and if the lock is free, which it
// is if it was lost as well, one behind it may get it first.
//
// # Keys
//
// {prefix + name}:fair:holders, a string, the holder's token, which expires with the lease; beside it a hash with the
// last fence and ticket, and the queue and heartbeats of those who wait. docs/protocol.md has the whole protocol.
package fair
