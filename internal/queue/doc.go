// Package queue decides when the waiters of one name in this process send heartbeats, together and in as few commands as possible. In order:
// the server has queued a waiter, which joins (Join) and so sets the timer; the timer fires (Fired), and one waiter or all send a heartbeat;
// the reply (Answered) or its absence (Failed) says when the next is due; messages may ask for one sooner (Notified, AllBy); a waiter leaves.
//
// The package is pure, as package claim is, and has no mutex. Its driver, package keeper, calls each Queue under the mutex of a waitQueue, has
// the set of its waiters, and finds the first of them by the places that their claims know. A Queue knows only how many there are, and when
// its timer fires: an effect sets the timer only to a sooner time.
package queue
