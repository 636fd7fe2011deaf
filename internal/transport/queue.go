package transport

import (
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxBatch is the maximum number of commands in one pipeline: enough to save round trips, few enough that the first
// command does not wait long for the last.
const maxBatch = 128

// A call that waits for overdueAfter because all preferred senders are busy makes one more sender start, if there is a
// connection for it. The delay doubles with each extra sender, up to maxOverdueAfter, so that a server that hangs does
// not accumulate senders.
const (
	overdueAfter    = 2 * time.Millisecond
	maxOverdueAfter = 100 * time.Millisecond
)

// nodeQueue holds the calls for one server, and its senders.
type nodeQueue struct {
	t         *Transport
	limit     int // the maximum number of batches in flight: the number of connections
	preferred int // the number of active senders up to which a new one starts at once

	mu         sync.Mutex // guards the fields below
	urgent     []*Call    // queued, to be sent first
	queued     []*Call    // queued, not urgent
	inFlight   int        // batches being sent
	active     int        // senders that are not idle, plus callers that send inline
	inline     *sender    // reused by callers that send inline; nil while in use, or before first use
	senders    int        // goroutines
	idle       []*sender  // senders with nothing to do; the last in is the first out
	timer      *time.Timer
	timerArmed bool // the timer runs: calls are queued and all preferred senders are busy
	closed     bool
}

// sender sends batches, one after the other, in a goroutine of its own. Senders are kept when idle, because a new
// goroutine would have to grow its stack for each batch.
type sender struct {
	wake  chan struct{} // capacity 1
	pipe  redis.Pipeliner
	cmds  []redis.Cmder
	batch []*Call
}

func (q *nodeQueue) newSender() *sender {
	return &sender{wake: make(chan struct{}, 1), pipe: q.t.rdb.Pipeline()}
}

func (q *nodeQueue) add(call *Call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		call.failClosed()
		return
	}
	if call.Urgent {
		q.urgent = append(q.urgent, call)
	} else {
		q.queued = append(q.queued, call)
	}
	q.scheduleLocked()
}

// sendInline sends a call in the caller's goroutine and returns true, if no other call is queued or in flight. If there
// is one, sharing a pipeline is cheaper.
func (q *nodeQueue) sendInline(call *Call) bool {
	q.mu.Lock()
	if q.closed || q.inFlight > 0 || q.queuedLocked() > 0 {
		q.mu.Unlock()
		return false
	}
	q.inFlight++
	q.active++
	q.t.senders.Add(1) // Close does not wait yet: it closes the queues first
	s := q.inline
	q.inline = nil
	q.mu.Unlock()
	if s == nil {
		s = q.newSender()
	}
	s.batch = append(s.batch, call)
	q.t.exchange(s)
	q.mu.Lock()
	q.inFlight--
	q.active--
	q.inline = s
	if q.queuedLocked() > 0 {
		q.scheduleLocked()
	}
	q.mu.Unlock()
	q.t.senders.Done()
	return true
}

func (q *nodeQueue) queuedLocked() int { return len(q.urgent) + len(q.queued) }

// scheduleLocked makes a sender take the queued calls: at once, or after a delay if all preferred senders are busy. If
// there is no connection for one more sender, the next one whose batch completes takes them; the client's timeouts bound
// how long that takes.
func (q *nodeQueue) scheduleLocked() {
	switch {
	case q.active < q.preferred:
		q.wakeSenderLocked()
	case q.active < q.limit:
		q.armTimerLocked()
	}
}

// wakeSenderLocked wakes an idle sender, or starts a new one.
func (q *nodeQueue) wakeSenderLocked() {
	q.active++
	if n := len(q.idle); n > 0 {
		s := q.idle[n-1]
		q.idle = q.idle[:n-1]
		s.wake <- struct{}{}
		return
	}
	q.senders++
	q.t.senders.Go(func() { q.runSender(q.newSender()) })
}

// armTimerLocked starts the timer that wakes one more sender, in case all senders hang.
func (q *nodeQueue) armTimerLocked() {
	if q.timerArmed {
		return
	}
	q.timerArmed = true
	delay := min(overdueAfter<<min(q.active-q.preferred, 10), maxOverdueAfter)
	if q.timer == nil {
		q.timer = time.AfterFunc(delay, q.timerFired)
	} else {
		q.timer.Reset(delay)
	}
}

func (q *nodeQueue) timerFired() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.timerArmed = false
	if q.queuedLocked() > 0 && q.active < q.limit { // calls are queued, so a sender is running and Close waits for it
		q.wakeSenderLocked()
	}
}

// close ends the senders once no calls are queued. It does not wait.
func (q *nodeQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for len(q.idle) > 0 {
		q.wakeSenderLocked()
	}
}

// runSender sends batches until no calls are queued and either the queue is closed or there are more senders than
// preferred.
func (q *nodeQueue) runSender(s *sender) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for q.queuedLocked() == 0 || q.inFlight >= q.limit {
			q.active--
			if q.closed || q.senders > q.preferred {
				q.senders--
				return
			}
			q.idle = append(q.idle, s)
			q.mu.Unlock()
			<-s.wake
			q.mu.Lock()
		}
		s.batch = takeCalls(s.batch, &q.urgent)
		s.batch = takeCalls(s.batch, &q.queued)
		if q.queuedLocked() > 0 {
			q.scheduleLocked()
		}
		q.inFlight++
		q.mu.Unlock()
		q.t.exchange(s)
		q.mu.Lock()
		q.inFlight--
	}
}

// takeCalls moves calls from a queue to a batch until either the queue is empty or the batch is full.
func takeCalls(batch []*Call, from *[]*Call) []*Call {
	if len(batch) == 0 && len(*from) <= maxBatch { // the usual case: swap the slices, copy nothing
		batch, *from = *from, batch
		return batch
	}
	n := min(maxBatch-len(batch), len(*from))
	if n == 0 {
		return batch
	}
	batch = append(batch, (*from)[:n]...)
	rest := copy(*from, (*from)[n:])
	clear((*from)[rest:])
	*from = (*from)[:rest]
	return batch
}
