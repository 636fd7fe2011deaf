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
	MaxElapsed time.Duration // of heartbeats that fail, after which waiters give up; negative: never
}

// Queue is what is known of the waiters of one name in this process. The zero Queue has none. When the last one has left, the driver drops
// the queue; a command that is still under way then belongs to a queue without waiters. A Queue is a value without pointers, which the
// search in internal/testing/explore copies and compares. It is not safe for concurrent use.
type Queue struct {
	waiters  int32
	inFlight int32         // commands under way
	again    bool          // send one more when one of them is answered
	failing  bool          // the last command was not answered
	sent     claim.Instant // when heartbeats were last sent
	due      claim.Instant // when the next heartbeats of all waiters are due; a heartbeat before that is of the first waiter only
	timer    claim.Instant // when the timer fires; 0: it is not set
	failed   claim.Instant // when the first command failed since one was answered
	notified claim.Instant // when a message last said when to send a heartbeat
	pause    time.Duration // before the next heartbeat of the first waiter, after waiters were queued again; 0: until it is due
}

// Beat says which waiters send heartbeats.
type Beat uint8

// The heartbeats.
const (
	NoBeat Beat = iota
	First       // of the waiter whose place is the least
	All         // in commands of Batch waiters at most
)

// Effects are what is to be done after an event. The driver sets the timer before it tells the queue of another event.
type Effects struct {
	Timer  claim.Instant // when the timer is to fire; 0: as before
	Beat   Beat          // send heartbeats
	Empty  bool          // nobody waits any more: cancel the timer, and drop the queue
	GiveUp bool          // the waiters of the command that has failed leave with its error
}

// Waiters returns how many wait.
func (q *Queue) Waiters() int { return int(q.waiters) }

// Failing reports whether the last command was not answered. If it was, the pause after the next failure is the first of its series.
func (q *Queue) Failing() bool { return q.failing }

// Timer returns when the timer fires; 0: it is not set.
func (q *Queue) Timer() claim.Instant { return q.timer }

// Join adds a waiter that the server has queued. The reply has said when it may be granted the lock, in ms, or that there is more to be
// admitted at once.
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

// FirstBy makes the first waiter send a heartbeat at that time at the latest, if no other is due before.
func (q *Queue) FirstBy(at claim.Instant, out *Effects) { q.wake(at, out) }

// Notified is FirstBy after a message that asked for it.
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
		// The last one is under way. It may have run before the event that made this one due.
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

// Answered handles the reply to a command of so many waiters. The server did not know some of them; rejoins says that
// a command which queues them again leaves now (see claim.Rejoining).
func (q *Queue) Answered(r *Rules, now claim.Instant, of, unknown int, rejoins bool, retryIn int64, more bool, out *Effects) {
	q.inFlight--
	switch {
	case unknown == 0:
		q.failing = false
	case of < min(q.Waiters(), Batch): // it may not know the others either
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

// pauses is which part of an interval passes before the first waiter asks again after the server had passed over it. Each pause is four times
// as long as the one before, up to the interval. The lock may be granted to it at any moment now, and a message may not reach it: so its
// turn comes a heartbeat late, and not two.
const pauses = 256

// Failed handles that a command was not answered. The next one is sent after the pause, or when the next heartbeats are due.
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

// Missed reports, of a waiter that the server does not know, whether the server has passed over it though it should not have. The subscription
// began at since (0: there is none), and the waiter's last call that was answered was sent at asked: if the process was
// subscribed since, its heartbeat has not lapsed, and no message has come, the server does not count the subscription.
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
