package conformance

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// Cases in which the head can be served earlier, and of late duplicates.

// headNotifiedWhen waits for the time when eight of ten permits return, and makes that earlier. No heartbeat helps.
func headNotifiedWhen(w *World, sooner func(p *Process, s *semaphore.Semaphore)) {
	const d = 2 * time.Second
	p := w.Process(slowHeartbeats)
	s := p.sem(10, inWindow(d))
	w.mustAcquire(permits(s, 5))
	start := time.Now()
	time.Sleep(d / 4)
	sooner(p, s)
	due := start.Add(d)
	waits := w.acquireAsync(w.ctx(), 1, permits(w.Process(slowHeartbeats).sem(10, inWindow(d)), 8))
	time.Sleep(time.Until(start.Add(d / 2)))
	sooner(nil, s)
	r := w.await(waits, time.Until(due)+2*time.Millisecond)
	w.must(r.err)
	if late := r.at.Sub(due); !w.Real && late > d/8 {
		w.Errorf("it was served %v late", late)
	}
	w.checkAllKeysExpire()
}

func raisedLimitNotifiesHead(w *World) {
	headNotifiedWhen(w, func(p *Process, s *semaphore.Semaphore) {
		if p != nil {
			w.mustAcquire(permits(s, 5))
		} else {
			w.must(s.SetLimit(w.ctx(), 13))
		}
	})
}

func callersLimitNotifiesHead(w *World) {
	headNotifiedWhen(w, func(p *Process, s *semaphore.Semaphore) {
		if p != nil {
			w.mustAcquire(permits(s, 5))
		} else {
			w.refused(w.Process(slowHeartbeats).sem(13, inWindow(2*time.Second)), 4)
		}
	})
}

// unusedPermitsNotifyHead checks that permits which were granted to a cancelled request are returned.
func unusedPermitsNotifyHead(w *World) {
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	headNotifiedWhen(w, func(p *Process, s *semaphore.Semaphore) {
		if p != nil {
			p.Net.Break("evalsha", 1, faultnet.SwallowReply)
			go func() { _, _ = s.Acquire(ctx, 5) }()
			w.eventually("the permits to be taken", func() bool { return w.spent() == 10 })
		} else {
			cancel()
			w.eventually("the permits to be returned", func() bool { return w.spent() == 5 })
		}
	})
}

// crashedHolderAfterQueueMoved crashes a holder while others pass on their permit, until the head is a waiter that
// was too far back to know when the crashed holder's lease expires.
func crashedHolderAfterQueueMoved(w *World) {
	const long = 8 * time.Second // longer than HeartbeatTimeout
	ps := make([]*semaphore.Semaphore, 7)
	for i := range ps {
		ps[i] = w.Process(func(o *lockkeeper.Options) { o.HeartbeatInterval, o.HeartbeatTimeout = time.Second, 3*time.Second }).
			sem(2, noRenewal, func(o *semaphore.Options) { o.TTL = long })
	}
	w.mustAcquire(permits(ps[0], 1))
	over := time.Now().Add(long)
	held := w.mustAcquire(permits(ps[1], 1))
	time.Sleep(long - 800*time.Millisecond) // less than a heartbeat interval
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

// deadWaitersIgnored checks that waiters of dead processes are not waited for.
func deadWaitersIgnored(w *World) {
	const d = time.Minute
	s := w.Process().sem(1, inWindow(d))
	w.mustAcquire(permits(s, 1))
	dead := w.Process(slowHeartbeats)
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	for range 80 {
		go func() { _, _ = dead.sem(1, inWindow(d)).Acquire(ctx, 1) }()
	}
	w.awaitWaiters("x", 80)
	dead.Crash()
	time.Sleep(heartbeatInterval) // until the heartbeats lapse
	if after := w.wantLimitedError(w.refused(s, 1)).RetryAfter; after > d+time.Second {
		w.Errorf("to come back after %v", after)
	}
	hurries, cancelWait := context.WithTimeout(w.ctx(), 2*d)
	defer cancelWait()
	waits := make(chan result, 1)
	go func() {
		lease, err := s.Acquire(hurries, 1)
		waits <- result{lease, err, time.Now()}
	}()
	select {
	case r := <-waits:
		w.Errorf("with two windows to go: %v", r.err)
	case <-time.After(heartbeatInterval):
	}
}

// lateDuplicatesOfPermits repeats requests whose replies were lost after all have ended.
func lateDuplicatesOfPermits(w *World) {
	const d = 300 * time.Millisecond
	p := w.Process()
	s := p.sem(3, inWindow(d))
	for _, f := range []func(context.Context, int) (*lockkeeper.Lease, error){s.Acquire, s.TryAcquire} {
		w.mustAcquire(permits(s, 1)) // load the scripts
		time.Sleep(d + 10*time.Millisecond)
		p.Net.Break("evalsha", 1, faultnet.CutReply|faultnet.Copy)
		lease, err := f(w.ctx(), 3)
		w.must(err)
		w.release(lease)
		time.Sleep(d + 10*time.Millisecond)
		w.available(s, 3)
		w.must(p.Net.Replay())
		w.available(s, 3)
	}
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
		w.Errorf("LimitChanged with %d", e.Limit)
	}
	w.must(s.SetLimit(w.ctx(), 8))
	w.must(p.Net.Replay())
	w.available(s, 7)
	w.release(lease)
}

// setLimitOfOtherKind sets the limit of a window where there was none. The window is that of the caller.
func setLimitOfOtherKind(w *World) {
	s := w.Process().sem(10)
	lease := w.mustAcquire(permits(s, 1))
	w.must(w.Process().sem(100, inWindow(time.Minute)).SetLimit(w.ctx(), 2))
	limits, err := w.admin.HGet(w.ctx(), "{lock:x}:semaphore:meta", "limits").Result()
	w.must(err)
	if want := "10:0:0 10:2:60000"; limits != want {
		w.Errorf("limits %q, want %q", limits, want)
	}
	w.release(lease)
}

// submillisecondWindow checks that a window that is not a whole number of milliseconds is never shorter than
// requested.
func submillisecondWindow(w *World) {
	if w.Real {
		return // a real server's clock advances between the two
	}
	s := w.Process().sem(1, inWindow(10*time.Millisecond+time.Microsecond))
	w.mustAcquire(permits(s, 1))
	time.Sleep(11 * time.Millisecond)
	w.refused(s, 1)
	time.Sleep(time.Millisecond)
	w.mustAcquire(permits(s, 1))
}

// tryAcquireAfterClockSetBack checks that a try shortens a lease that lasts too long after the clock was set back,
// if nobody waits.
func tryAcquireAfterClockSetBack(w *World) {
	if w.Real {
		return // a real server uses the clock of the machine
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
	w.release(w.mustAcquire(func(ctx context.Context) (*lockkeeper.Lease, error) { return s.TryAcquire(ctx, 1) }))
}
