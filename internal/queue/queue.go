package queue

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

// Batch is the maximum number of waiters in one command: enough for one command per name and interval in all but the
// largest queues, few enough that the script takes about a millisecond.
const Batch = 1000

// Rules are what the queues of a keeper have in common. They do not change.
type Rules struct {
	Interval   time.Duration // between the heartbeats of a waiter
	Timeout    time.Duration // after which the server removes a waiter without a heartbeat
	MaxElapsed time.Duration // for how long heartbeats may fail before waiters give up; negative: for ever
}

// Queue is what is known of the waiters of one name in this process. The zero Queue has no waiters. When the last waiter has left, the driver
// drops the queue, which may still handle the reply to a command under way. A Queue is a value without pointers, which the search in
// internal/testing/explore copies and compares. It is not safe for concurrent use.
type Queue struct {
	waiters  int32
	inFlight int32         // commands under way
	again    bool          // send one more when one of them is answered
	failing  bool          // the last command was not answered
	sent     claim.Instant // when heartbeats were last sent
	due      claim.Instant // when all waiters must send heartbeats; before then only the first waiter sends one
	timer    claim.Instant // when the timer fires; 0: it is not set
	failed   claim.Instant // when the first of the commands that have failed in a row did
	notified claim.Instant // when a message last asked for a heartbeat
	pause    time.Duration // before the next heartbeat of the first waiter, after waiters were queued again (see pauses); 0: none
}

// Beat says which waiters send heartbeats.
type Beat uint8

// The heartbeats.
const (
	NoBeat Beat = iota
	First       // of the waiter whose place is the least
	All         // in commands of Batch waiters at most
)

// Effects are what the driver must do after an event. It sets the timer before it passes another event.
type Effects struct {
	Timer  claim.Instant // when the timer must fire; 0: as before
	Beat   Beat          // send heartbeats
	Empty  bool          // nobody waits any more: cancel the timer, and drop the queue
	GiveUp bool          // the waiters of the command that has failed leave with its error
}

// Waiters returns how many wait.
func (q *Queue) Waiters() int { return int(q.waiters) }

// Failing reports whether the last command was not answered. If it was answered, a failure begins a new series of growing pauses.
func (q *Queue) Failing() bool { return q.failing }

// Timer returns when the timer fires; 0: it is not set.
func (q *Queue) Timer() claim.Instant { return q.timer }

// Join adds a waiter that the server has queued. As the reply has said, a waiter may be granted the lock in retryIn ms (0: unknown), or more
// waiters can be admitted at once.
func (q *Queue) Join(r *Rules, now claim.Instant, retryIn int64, more bool, out *Effects) {
	if q.waiters == 0 {
		q.due = now.Add(r.Interval)
	}
	q.waiters++
	q.wake(next(r, now, retryIn, more), out)
}

// Leave removes a waiter.
func (q *Queue) Leave(out *Effects) {
	q.waiters--
	if q.waiters == 0 {
		q.timer, out.Empty = 0, true
	}
}

// AllBy makes all waiters send heartbeats at that time at the latest: a message or a reply asked for it, or messages may have been lost
// until now.
func (q *Queue) AllBy(at claim.Instant, out *Effects) {
	q.due = min(q.due, at)
	q.wake(at, out)
}

// FirstBy makes the first waiter send a heartbeat at that time at the latest.
func (q *Queue) FirstBy(at claim.Instant, out *Effects) { q.wake(at, out) }

// Notified handles a message that asks the first waiter for a heartbeat at that time at the latest.
func (q *Queue) Notified(now, at claim.Instant, out *Effects) {
	q.notified = now
	q.wake(at, out)
}

// Fired handles that the timer has fired.
func (q *Queue) Fired(r *Rules, now claim.Instant, out *Effects) {
	q.timer = 0
	if q.waiters == 0 {
		return
	}
	if q.inFlight > 0 && now.Sub(q.sent) < 2*r.Interval {
		// A command is under way. The server may have run it before the event that makes this one due, so one more follows its reply.
		q.again = true
		q.wake(now.Add(r.Interval), out)
		return
	}
	q.sent, q.again = now, false
	out.Beat = First
	commands := int32(1)
	if now >= q.due {
		out.Beat, q.due = All, now.Add(r.Interval)
		commands = (q.waiters + Batch - 1) / Batch
	}
	q.inFlight += commands
	q.wake(q.due, out)
}

// Answered handles the reply to a command of total heartbeats. The server did not know unknown of their waiters; rejoins says that a command
// queues them again now (see claim.Rejoining). retryIn and more are as for Join.
func (q *Queue) Answered(r *Rules, now claim.Instant, total, unknown int, rejoins bool, retryIn int64, more bool, out *Effects) {
	q.inFlight--
	switch {
	case unknown == 0:
		q.failing = false
	case total < min(q.Waiters(), Batch): // it may not know the others either
		q.AllBy(now, out)
	}
	at := next(r, now, retryIn, more || q.again)
	switch {
	case rejoins:
		q.inFlight++
		q.pause = r.Interval / pauses
	case q.pause > 0 && q.pause < r.Interval:
		at = min(at, now.Add(q.pause))
		q.pause *= 4
	}
	q.wake(at, out)
}

// After waiters were queued again, the first one sends its next heartbeat after Interval/pauses, and each further one after four times the
// pause before, up to Interval. It may be granted the lock at any moment, and the message may not reach it. Without these pauses it could
// learn of the grant a whole Interval later.
const pauses = 256

// Failed handles that a command was not answered. All waiters send the next one, after the pause or when the timer fires sooner.
func (q *Queue) Failed(r *Rules, now claim.Instant, retryable bool, pause time.Duration, out *Effects) {
	q.inFlight--
	if !q.failing {
		q.failing, q.failed = true, now
	}
	q.due = now
	if !retryable || r.MaxElapsed >= 0 && now.Sub(q.failed) >= r.MaxElapsed {
		out.GiveUp = true
		return
	}
	q.wake(now.Add(pause), out)
}

// Missed reports whether the server no longer knows a waiter because it does not see the process's subscription, which it acknowledged at
// since (0: never). The waiter's last answered call was sent at asked. If the process was subscribed by then, no message has come after it,
// and the waiter's heartbeat has not expired, no other reason is left.
func (q *Queue) Missed(r *Rules, now, since, asked claim.Instant) bool {
	return since > 0 && since < asked && q.notified <= asked && now < asked.Add(r.Timeout)
}

// wake makes the timer fire at that time at the latest.
func (q *Queue) wake(at claim.Instant, out *Effects) {
	if q.waiters > 0 && (q.timer == 0 || at < q.timer) {
		q.timer, out.Timer = at, at
	}
}

// next returns when the next heartbeat is due: after the interval, or after retryIn ms, when the server expects that a waiter
// can be granted the lock. If more is set, it is due at once.
func next(r *Rules, now claim.Instant, retryIn int64, more bool) claim.Instant {
	switch {
	case more:
		return now
	case retryIn > 0 && claim.Duration(retryIn) < r.Interval:
		return now.Add(claim.Duration(retryIn) + time.Millisecond) // a lease ends within the given millisecond
	}
	return now.Add(r.Interval)
}
