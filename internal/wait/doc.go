// Package wait has those who wait in this process, and what they wait for: at the server, in the queues of their names, with heartbeats
// (queue.go); before that, for a mutex, in a local queue, of which one asks the server (local.go); and the messages that say
// that somebody was granted a lease or is to give one back (messages.go). It does what package queue decides, and knows a request by what it
// has to be told: Waiter and Receiver.
//
// Mutexes are taken in this order: that of a request, Queues, waitQueue. Those of Local and Messages are taken after that of a request, and
// nothing of this package is locked under them.
package wait
