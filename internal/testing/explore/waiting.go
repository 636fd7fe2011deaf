package explore

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/queue"
)

// This file has the waiters of each keeper, whose heartbeats its queue.Queue decides about.

// waiters is what a keeper knows of its requests that wait.
type waiters struct {
	queue     queue.Queue
	heartbeat slot
	dropped   bool // the queue was dropped while the heartbeat was under way, and knows nothing of it
}

// rules are those of all queues. Heartbeats that fail are sent again without a pause.
var rules = queue.Rules{Interval: ms(tick), Timeout: ms(heartbeatTTL), MaxElapsed: -1}

// uncounted reports whether a keeper does not count on its subscription, as pubsub.Subscriber.Reliable does.
func (p *keeper) uncounted() bool { return !p.subscribed || p.doubts }

// tell tells the queue of a keeper of an event. A queue that becomes empty is dropped.
func (w *world) tell(k int, event func(q *queue.Queue, out *queue.Effects)) {
	p := &w.keepers[k].waiters
	var out queue.Effects
	event(&p.queue, &out)
	if out.Empty {
		p.queue, p.dropped = queue.Queue{}, p.heartbeat.call != 0
	}
}

// join adds a request to the queue of its keeper, after a reply.
func (m *model) join(w *world, r int, retryIn int64, more bool) {
	w.requests[r].queued = true
	w.tell(m.keeperOf[r], func(q *queue.Queue, out *queue.Effects) { q.Join(&rules, w.instant(), retryIn, more, out) })
}

func (m *model) leave(w *world, r int) {
	if w.requests[r].queued {
		w.requests[r].queued = false
		w.tell(m.keeperOf[r], func(q *queue.Queue, out *queue.Effects) { q.Leave(out) })
	}
}

// allBy makes all waiters of a keeper send heartbeats at that time at the latest.
func (w *world) allBy(k int, at claim.Instant) {
	w.tell(k, func(q *queue.Queue, out *queue.Effects) { q.AllBy(at, out) })
}

// wasEmpty handles that a reply to a release, which was sent at that time, says that nobody waits at the server.
func (m *model) wasEmpty(w *world, k int, sent claim.Instant) {
	for r := range m.requests {
		if q := &w.requests[r]; m.keeperOf[r] == k && q.queued && q.claim.Place() != 0 && q.claim.Asked() < sent {
			w.allBy(k, w.instant())
			return
		}
	}
}

func (m *model) queued(w *world, k int) (bits uint8) {
	for r := range m.requests {
		if m.keeperOf[r] == k && w.requests[r].queued {
			bits |= 1 << r
		}
	}
	return bits
}

// first returns the bit of the waiter whose place is the least.
func (m *model) first(w *world, k int) uint8 {
	least := -1
	for r := range m.requests {
		if m.keeperOf[r] == k && w.requests[r].queued && (least < 0 || w.requests[r].claim.Place() < w.requests[least].claim.Place()) {
			least = r
		}
	}
	return 1 << least
}

// beatDue reports whether the timer of the queue of a keeper may fire: not if it would send a heartbeat while another one is under way.
func (m *model) beatDue(w *world, k int) bool {
	p := &w.keepers[k].waiters
	if p.queue.Timer() == 0 || w.instant() < p.queue.Timer() {
		return false
	}
	tried := p.queue
	var out queue.Effects
	tried.Fired(&rules, w.instant(), &out)
	return out.Beat == queue.NoBeat || p.heartbeat.call == 0
}

// beat handles that the timer of the queue of a keeper has fired.
func (m *model) beat(w *world, k int) {
	p := &w.keepers[k].waiters
	var out queue.Effects
	p.queue.Fired(&rules, w.instant(), &out)
	c := call{script: heartbeat, uncounted: w.keepers[k].uncounted()}
	switch out.Beat {
	case queue.NoBeat:
		return
	case queue.First:
		c.requests = m.first(w, k)
	case queue.All:
		c.requests = m.queued(w, k)
		if c.requests&(c.requests-1) != 0 {
			for _, r := range c.list() {
				c.places[r] = w.requests[r].claim.Place()
			}
		}
	}
	p.heartbeat = slot{call: m.srv.call(c), sent: w.tick}
}

func (m *model) heartbeatFailed(w *world, k int, c call) {
	if c.script == rejoin {
		for _, r := range c.list() {
			m.step(w, r, claim.Event{Kind: claim.CopyEnded, Outcome: claim.InDoubt})
		}
	}
	p := &w.keepers[k].waiters
	if !p.dropped {
		w.tell(k, func(q *queue.Queue, out *queue.Effects) { q.Failed(&rules, w.instant(), true, 0, out) })
	}
	p.dropped = false
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
