package conformance

import (
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// Changes of the time at which the head of the queue can be granted its permits, and late duplicates, which must change nothing.

// crashedHolderAfterQueueMoved: a holder crashes, and others release their permits, until the head of the queue is a waiter that
// was too far behind to be notified of the end of the crashed holder's lease.
func crashedHolderAfterQueueMoved(w *World) {
	long, heartbeat := 8*time.Second, time.Second // a lease is longer than heartbeats last
	if w.Real {                                   // and all wait before it ends
		long, heartbeat = 13*time.Second, 4*time.Second
	}
	ps := make([]*semaphore.Semaphore, 7)
	for i := range ps {
		ps[i] = w.Process(func(o *lockkeeper.Options) { o.HeartbeatInterval, o.HeartbeatTimeout = heartbeat, 3*heartbeat }).
			sem(2, noRenewal, func(o *semaphore.Options) { o.TTL = long })
	}
	w.mustAcquire(permits(ps[0], 1))
	over := time.Now().Add(long)
	held := w.mustAcquire(permits(ps[1], 1))
	time.Sleep(time.Until(over) - heartbeat*4/5)
	w.must(held.Extend(w.ctx(), long))
	var queue []chan result
	for i, s := range ps[2:] {
		queue = append(queue, w.acquireAsync(w.ctx(), int64(i+1), permits(s, 1)))
	}
	for _, ch := range queue[:4] {
		w.release(held)
		r := w.await(ch, 0)
		w.must(r.err)
		held = r.lease
	}
	r := w.await(queue[4], time.Until(over)+time.Second)
	w.must(r.err)
	if late := r.at.Sub(over); !w.Real && late > 2*time.Millisecond {
		w.Errorf("the permit of the crashed holder came %v late", late)
	}
	w.release(held)
	w.release(r.lease)
}

func lateDuplicateSetLimit(w *World) {
	reported := make(chan lockkeeper.Event, 10)
	p := w.Process(func(o *lockkeeper.Options) { o.Hooks.LimitChanged = func(e lockkeeper.Event) { reported <- e } })
	s := p.sem(10)
	lease := w.mustAcquire(permits(s, 1))
	w.must(s.SetLimit(w.ctx(), 9))
	nextEvent(w, reported)
	p.Net.Break("evalsha", 1, faultnet.CutReply|faultnet.Copy)
	w.must(s.SetLimit(w.ctx(), 5))
	if e := nextEvent(w, reported); e.Limit != 5 {
		w.Errorf("LimitChanged reported %d", e.Limit)
	}
	w.must(s.SetLimit(w.ctx(), 8))
	w.must(p.Net.Replay())
	w.available(s, 7)
	w.release(lease)
}

// tryAcquireAfterClockSetBack: where nobody waits, a lease that lasts too long since the clock was set back is cut by a try.
func tryAcquireAfterClockSetBack(w *World) {
	if w.Real {
		return // its clock is the machine's
	}
	crashed := w.Process()
	w.mustAcquire(permits(crashed.sem(1), 1))
	crashed.Crash()
	defer w.mini.SetTime(time.Time{})
	stop := w.shiftClock(-time.Hour)
	defer stop()
	s := w.Process().sem(1)
	w.refused(s, 1)
	time.Sleep(ttl + 2*time.Millisecond)
	w.release(w.mustAcquire(s.TryAcquire))
}
