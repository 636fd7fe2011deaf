package transport

import (
	"context"
	"errors"
	"runtime"
	"slices"
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

// A server is silent if calls are under way, or its last pipeline failed, and it has answered nothing for silentAfter. A pipeline then has
// silentBatch calls at most, because a server that hangs runs them when it goes on, for callers who have left by then.
const (
	silentAfter = 10 * time.Millisecond
	silentBatch = 8
)

// giveUpAfter is how long a server must have been silent for GiveUp to have an effect.
const giveUpAfter = time.Second

// nodeQueue holds the calls for one server, and its senders.
type nodeQueue struct {
	t         *Transport
	limit     int // the maximum number of batches in flight: the number of connections
	preferred int // the number of active senders up to which a new one starts at once

	mu         sync.Mutex // guards the fields below
	urgent     callList   // queued, to be sent first
	queued     callList   // queued, not urgent
	unawaited  callList   // queued, and Unawaited
	clearing   bool       // a batch of unawaited calls is in flight
	seq        uint64     // of the last call that was queued
	inFlight   int        // batches being sent
	inline     int        // how many of these batches are sent inline
	answeredAt time.Time  // silence counts from here: the last answer, or the first batch after a time without any
	endedAt    time.Time  // when a batch last ended
	failing    bool       // the batch that ended last was not answered
	shared     bool       // the batch that was sent last had several calls
	record     record     // what Answers is made from
	active     int        // senders that are not idle
	senders    int        // goroutines
	idle       []*sender  // senders with nothing to do; the last in is the first out
	timer      *time.Timer
	timerArmed bool // the timer runs: calls are queued and all preferred senders are busy
	givenUp    bool // see Transport.GiveUp
	closed     bool

	own         *ownConn  // for callers that send inline; nil: there is none
	ownFree     bool      // it is connected and not in use
	ownUnusable bool      // there can be none, or none any more
	ownAgain    time.Time // before then, no other one is made
	wanted      int       // calls since wantedSince that would have been sent on it
	wantedSince time.Time // zero: never
}

// sender sends batches, one after the other, in a goroutine of its own. Senders are kept when idle, because a new
// goroutine would have to grow its stack for each batch.
type sender struct {
	wake      chan struct{} // capacity 1
	pipe      redis.Pipeliner
	cmds      []redis.Cmder
	batch     []*Call
	withdrawn []*Call   // found when the batch was taken
	began     time.Time // when it was taken
	seq       uint64    // the last call that was queued by then
	unawaited bool      // the batch is of Unawaited calls
	own       *ownConn  // the connection that it sends on; nil: any of the client's pool
}

func (q *nodeQueue) add(call *Call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// CallDone runs in other goroutines: the caller may have mutexes locked.
	if q.closed {
		go call.notSent(redis.ErrClosed)
		return
	}
	if q.givenUp && q.silentLocked(time.Now(), giveUpAfter) {
		go call.notSent(redis.ErrClosed)
		return
	}
	q.seq++
	call.seq = q.seq
	list, limit := &q.queued, q.t.maxQueued
	switch {
	case call.Unawaited:
		list, limit = &q.unawaited, 0
	case call.Urgent:
		list, limit = &q.urgent, 0
	}
	removed, added := list.add(call, limit)
	if len(removed) > 0 {
		go endAll(removed, nil)
	}
	if !added {
		go call.notSent(ErrQueueFull)
		return
	}
	q.scheduleLocked()
}

// sendInline sends a call in the caller's goroutine and returns true, if the Transport's own connection is free, and no other call is queued or
// in flight. If there is one, sharing its pipeline is cheaper. end is notified if ctx ends meanwhile.
func (q *nodeQueue) sendInline(ctx context.Context, call *Call, end EndReceiver) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.inFlight > 0 || q.readyLocked() {
		return false
	}
	o := q.takeOwnLocked()
	if o == nil {
		return false
	}
	q.t.senders.Add(1) // Close does not wait yet: it closes the queues first
	defer q.t.senders.Done()
	if !call.take() { // a call that was withdrawn ends in the queue
		q.returnOwnLocked(o, true)
		return false
	}
	usable := false
	q.inline++
	defer func() { // also if a hook of the application panics
		q.inline--
		q.returnOwnLocked(o, usable)
		if o.hooks {
			call.Err = ErrPanicked
			go call.Done.CallDone(call)
		}
	}()
	o.batch = append(o.batch, call)
	q.exchangeLocked(ctx, &o.sender, end)
	usable = !q.failing && !o.lost.Load() && !o.interrupted()
	return true
}

// exchangeLocked sends a batch. It unlocks mu meanwhile. If the batch is sent on the Transport's own connection, the exchange
// ends with ctx, and end is notified before.
func (q *nodeQueue) exchangeLocked(ctx context.Context, s *sender, end EndReceiver) {
	s.began, s.seq, q.shared = time.Now(), q.seq, len(s.batch) > 1
	if q.inFlight == 0 && !q.failing {
		q.answeredAt = s.began
	}
	q.inFlight++
	q.record.sent(s.began)
	silence := q.unlocked(ctx, s, end)
	if errors.Is(silence, ErrInterrupted) || s.own != nil && s.own.lost.Load() {
		return // the end of the connection says nothing about the server
	}
	q.endedAt = time.Now()
	if q.failing = silence != nil; !q.failing {
		q.answeredAt = q.endedAt
		return
	}
	if q.answeredAt.After(s.began) {
		return // another connection was answered meanwhile
	}
	until := s.seq // the calls that were queued by then would not have been answered either
	if q.givenUp {
		until = q.seq
	}
	unsent := q.takeUntilLocked(until)
	q.mu.Unlock()
	endAll(unsent, silence)
	q.mu.Lock()
}

// unlocked exchanges a batch with mu unlocked, and then counts it as in flight no more.
func (q *nodeQueue) unlocked(ctx context.Context, s *sender, end EndReceiver) (silence error) {
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		q.inFlight--
		q.record.ended(s.began)
	}()
	return q.exchange(ctx, s, end)
}

// silentLocked reports whether the server has been silent for d.
func (q *nodeQueue) silentLocked(now time.Time, d time.Duration) bool {
	return (q.failing || q.inFlight > 0) && now.Sub(q.answeredAt) >= d
}

// giveUp implements Transport.GiveUp.
func (q *nodeQueue) giveUp() {
	q.mu.Lock()
	q.givenUp = true
	var unsent []*Call
	if q.silentLocked(time.Now(), giveUpAfter) {
		unsent = q.takeUntilLocked(q.seq)
	}
	q.mu.Unlock()
	endAll(unsent, redis.ErrClosed)
}

// takeUntilLocked removes and returns the calls that were queued up to the number seq.
func (q *nodeQueue) takeUntilLocked(seq uint64) []*Call {
	return slices.Concat(q.urgent.takeUntil(seq), q.queued.takeUntil(seq), q.unawaited.takeUntil(seq))
}

// awaitedLocked reports whether calls are queued that somebody waits for.
func (q *nodeQueue) awaitedLocked() bool { return len(q.urgent.calls) > 0 || len(q.queued.calls) > 0 }

// clearsLocked reports whether the next batch may be of calls that nobody waits for.
func (q *nodeQueue) clearsLocked() bool { return len(q.unawaited.calls) > 0 && !q.clearing }

// readyLocked reports whether there is something to send.
func (q *nodeQueue) readyLocked() bool { return q.awaitedLocked() || q.clearsLocked() }

// scheduleLocked makes a sender take the queued calls: at once, or after a delay if all preferred senders are busy. If there is no connection for
// one more sender, the next sender whose batch completes takes them; the client's timeouts bound how long that takes.
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
	q.t.senders.Go(func() { q.runSender(&sender{wake: make(chan struct{}, 1), pipe: q.t.rdb.Pipeline()}) })
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
	if q.readyLocked() && q.active < q.limit { // calls are queued, so a sender is running and Close waits for it
		q.wakeSenderLocked()
	}
}

// close ends the senders once no calls are queued. It does not wait.
func (q *nodeQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.endOwnLocked()
	for len(q.idle) > 0 {
		q.wakeSenderLocked()
	}
}

// closeUnused closes the queue if it was not used in the last minute, and reports whether it did.
func (q *nodeQueue) closeUnused() bool {
	q.mu.Lock()
	unused := q.active == 0 && time.Since(q.answeredAt) > time.Minute
	q.mu.Unlock()
	if unused {
		q.close()
	}
	return unused
}

// runSender sends batches until no calls are queued and either the queue is closed or there are more senders than
// preferred.
func (q *nodeQueue) runSender(s *sender) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		q.gatherLocked()
		for !q.readyLocked() || q.inFlight-q.inline >= q.limit {
			q.active--
			if q.closed || q.senders > q.preferred {
				q.senders--
				return
			}
			q.idle = append(q.idle, s)
			q.mu.Unlock()
			<-s.wake
			q.mu.Lock()
			q.gatherLocked()
		}
		q.takeLocked(s)
		if q.readyLocked() {
			q.scheduleLocked()
		}
		if len(s.withdrawn) > 0 {
			q.mu.Unlock()
			endAll(s.withdrawn, nil)
			clear(s.withdrawn)
			q.mu.Lock()
		}
		if len(s.batch) > 0 {
			q.exchangeLocked(context.Background(), s, nil)
		}
		if s.unawaited {
			q.clearing = false
		}
	}
}

// gatherLocked lets the other goroutines that can run do so before the sender takes a batch, so that this has their calls as well. A case: the
// callers of the last batch have been unblocked, and each sends its next call. A call that is alone is not delayed.
func (q *nodeQueue) gatherLocked() {
	if q.inFlight == 0 && !q.shared {
		return
	}
	q.mu.Unlock()
	runtime.Gosched()
	q.mu.Lock()
}

// takeLocked takes the next batch from the queue. It is empty if all queued calls were withdrawn. A sender takes no two batches of Unawaited
// calls in a row while other calls are queued.
func (q *nodeQueue) takeLocked(s *sender) {
	limit := maxBatch
	if q.silentLocked(time.Now(), silentAfter) {
		limit = silentBatch
	}
	s.unawaited = q.clearsLocked() && !(s.unawaited && q.awaitedLocked())
	if s.unawaited {
		q.clearing = true
		s.batch, s.withdrawn = q.unawaited.take(s.batch, s.withdrawn[:0], limit)
		s.batch = joinAll(s.batch)
		return
	}
	s.batch, s.withdrawn = q.urgent.take(s.batch, s.withdrawn[:0], limit)
	s.batch, s.withdrawn = q.queued.take(s.batch, s.withdrawn, limit)
}
