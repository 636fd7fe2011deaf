package conformance

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

// The cases in this file are of primitives that serve waiters in order.

// waiterLister is a lock that lists its waiters.
type waiterLister interface {
	Waiters(ctx context.Context) ([]lockkeeper.Waiter, error)
}

// queueOf makes processes wait for x one after the other, behind a holder, and returns their results.
func (w *World) queueOf(ps ...*Process) (holder *lockkeeper.Lease, turns []chan result) {
	w.Helper()
	holder = w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	for i, p := range ps {
		turns = append(turns, w.lockAsync(w.ctx(), p.Lock("x", withTTL(time.Minute))))
		w.awaitWaiters("x", int64(i+1))
	}
	return holder, turns
}

// expectGranted checks that the wait ends now, and returns its lease.
func (w *World) expectGranted(ch chan result) *lockkeeper.Lease {
	w.Helper()
	r := w.await(ch, 0)
	w.must(r.err)
	return r.lease
}

// expectNotGranted checks that the wait goes on.
func (w *World) expectNotGranted(ch chan result) {
	w.Helper()
	select {
	case r := <-ch:
		w.Fatalf("the wait ended out of order: %v, %v", r.lease, r.err)
	default:
	}
}

func servedInOrder(w *World) {
	first := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	ps := []*Process{w.Process(), w.Process(), w.Process(), w.Process()}
	order := make(chan int, 20)
	for i := range 20 {
		l := ps[i%len(ps)].Lock("x")
		go func() {
			lease, err := l.Lock(w.ctx())
			if err != nil {
				w.Error(err)
				return
			}
			order <- i
			_ = lease.Release(w.ctx())
		}()
		w.awaitWaiters("x", int64(i+1))
	}
	w.release(first)
	for i := range 20 {
		if got := <-order; got != i {
			w.Errorf("grant %d went to waiter %d", i, got)
		}
	}
	w.checkClean()
}

// tryLockDoesNotJump deletes the lease, so that the lock is free while another process waits.
func tryLockDoesNotJump(w *World) {
	_, turns := w.queueOf(w.Process())
	w.must(w.admin.Del(w.ctx(), w.P.Key("x")).Err())
	newcomer := w.Process().Lock("x")
	_, err := newcomer.TryLock(w.ctx())
	w.checkError(err, lockkeeper.ErrNotAcquired)
	lease := w.expectGranted(turns[0])
	w.release(lease)
	w.checkFree(newcomer)
}

// newcomersSkipCrashed checks that a newcomer is served when all waiters before it have crashed.
func newcomersSkipCrashed(w *World) {
	dead := w.Process()
	_, _ = w.queueOf(dead, dead, dead)
	dead.Crash()
	w.eventually("the heartbeat to lapse", func() bool {
		n, err := w.admin.PubSubNumSub(w.ctx(), "lock:wake:"+dead.ID()).Result()
		return err == nil && n["lock:wake:"+dead.ID()] == 0
	})
	w.must(w.admin.Del(w.ctx(), w.P.Key("x")).Err())
	w.checkFree(w.Process().Lock("x"))
}

func middleWaiterCrashes(w *World) {
	ps := []*Process{w.Process(), w.Process(), w.Process()}
	holder, turns := w.queueOf(ps...)
	ps[1].Crash()
	w.release(holder)
	lease := w.expectGranted(turns[0])
	time.Sleep(4 * heartbeatInterval)
	w.expectNotGranted(turns[2])
	w.release(lease)
	w.release(w.expectGranted(turns[2]))
}

// crashAfterHandoffs checks that a waiter that was far from the head at its last heartbeat is notified in time that
// it is the head now.
func crashAfterHandoffs(w *World) {
	slow := func(o *lockkeeper.Options) { o.HeartbeatInterval, o.HeartbeatTimeout = time.Minute, 3*time.Minute }
	first := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	var ps []*Process
	var turns []chan result
	for i := range 8 {
		ps = append(ps, w.Process(slow))
		turns = append(turns, w.lockAsync(w.ctx(), ps[i].Lock("x")))
		w.awaitWaiters("x", int64(i+1))
	}
	w.release(first)
	for i, ch := range turns {
		r := w.await(ch, ttl+50*time.Millisecond)
		w.must(r.err)
		if i == 5 || i == 6 { // it receives its message, but its renewals and its release are lost
			ps[i].Crash()
			continue
		}
		w.release(r.lease)
	}
}

// disconnectedKeepsPosition checks that a waiter whose connections break is skipped while it is away, and rejoins at
// its old position.
func disconnectedKeepsPosition(w *World) {
	slow := func(o *lockkeeper.Options) { o.HeartbeatTimeout = time.Minute }
	ps := []*Process{w.Process(slow), w.Process(slow), w.Process(slow)}
	holder, turns := w.queueOf(ps...)
	ps[0].Crash()
	w.eventually("the heartbeat to lapse", func() bool {
		n, err := w.admin.PubSubNumSub(w.ctx(), "lock:wake:"+ps[0].ID()).Result()
		return err == nil && n["lock:wake:"+ps[0].ID()] == 0
	})
	w.release(holder)
	lease := w.expectGranted(turns[1])
	w.awaitWaiters("x", 1)
	ps[0].Net.Restore()
	w.eventually("a new subscription", func() bool { // heartbeats use another connection and may return sooner
		n, err := w.admin.PubSubNumSub(w.ctx(), "lock:wake:"+ps[0].ID()).Result()
		return err == nil && n["lock:wake:"+ps[0].ID()] == 1
	})
	w.awaitWaiters("x", 2)
	w.release(lease)
	lease = w.expectGranted(turns[0])
	w.expectNotGranted(turns[2])
	w.release(lease)
	w.release(w.expectGranted(turns[2]))
}

// cancelMiddleWaiter checks that a cancelled wait leaves no entry in the queue.
func cancelMiddleWaiter(w *World) {
	holder, turns := w.queueOf(w.Process(), w.Process())
	ctx, cancel := context.WithCancel(w.ctx())
	gone := w.lockAsync(ctx, w.Process().Lock("x"))
	w.awaitWaiters("x", 3)
	last := w.lockAsync(w.ctx(), w.Process().Lock("x"))
	w.awaitWaiters("x", 4)
	cancel()
	w.checkError(w.await(gone, 0).err, lockkeeper.ErrNotAcquired, context.Canceled)
	w.awaitWaiters("x", 3)
	w.release(holder)
	for _, ch := range append(turns, last) {
		w.release(w.expectGranted(ch))
	}
	w.checkClean()
}

// inspectQueue checks that listing the waiters is correct and does not change the queue.
func inspectQueue(w *World) {
	ps := []*Process{w.Process(), w.Process(), w.Process()}
	holder, turns := w.queueOf(ps...)
	l := w.Process().Lock("x").(waiterLister)
	list, err := l.Waiters(w.ctx())
	w.must(err)
	if len(list) != len(ps) {
		w.Fatalf("%d waiters of %d", len(list), len(ps))
	}
	for i, x := range list {
		if x.Keeper != ps[i].ID() || !x.Alive || x.WaitTime < 0 || x.WaitTime > 10*time.Second {
			w.Errorf("waiter %d is %+v, want one of keeper %s", i, x, ps[i].ID())
		}
	}
	ps[1].Crash()
	w.eventually("the heartbeat to lapse", func() bool {
		list, err := l.Waiters(w.ctx())
		w.must(err)
		return len(list) == 2 || len(list) == 3 && !list[1].Alive && list[0].Alive && list[2].Alive
	})
	w.release(holder)
	w.release(w.expectGranted(turns[0]))
	w.release(w.expectGranted(turns[2]))
	list, err = l.Waiters(w.ctx())
	w.must(err)
	if len(list) != 0 {
		w.Errorf("waiters %+v of an empty queue", list)
	}

	if !w.P.everywhere() {
		return
	}
	// A queue of several pages, in which no waiter may be listed twice. It takes seconds, and the code is the same for all.
	holder, _ = w.queueOf()
	many := w.Process()
	ctx, cancel := context.WithCancel(w.ctx())
	var chans []chan result
	for range 1100 {
		chans = append(chans, w.lockAsync(ctx, many.Lock("x")))
	}
	w.awaitWaiters("x", 1100)
	list, err = l.Waiters(w.ctx())
	w.must(err)
	seen := map[string]bool{}
	for _, x := range list {
		seen[x.Token] = true
	}
	if len(list) != 1100 || len(seen) != 1100 {
		w.Errorf("%d waiters listed, %d distinct, of 1100", len(list), len(seen))
	}
	cancel()
	for _, ch := range chans {
		if r := w.await(ch, time.Second); !errors.Is(r.err, context.Canceled) {
			w.Errorf("%v", r.err)
		}
	}
	w.release(holder)
	w.checkClean()
}

// heartbeatPositions checks that the Queued hook gets positions with replies and heartbeats.
func heartbeatPositions(w *World) {
	reported := make(chan int, 100)
	p := w.Process(func(o *lockkeeper.Options) {
		o.Hooks.Queued = func(e lockkeeper.Event) { reported <- e.Position }
	})
	holder, turns := w.queueOf(w.Process(), w.Process(), p)
	for i, release := range []*lockkeeper.Lease{nil, holder, nil} {
		if i == 2 {
			release = w.expectGranted(turns[0])
		}
		if release != nil {
			w.release(release)
		}
		select {
		case at := <-reported:
			if at != 2-i {
				w.Errorf("position %d, want %d", at, 2-i)
			}
		case <-time.After(2*heartbeatInterval + w.slack()):
			w.Fatalf("position %d was not reported", 2-i)
		}
	}
	w.release(w.expectGranted(turns[1]))
	w.release(w.expectGranted(turns[2]))
}

// clockJumps sets the server's clock forward and back while the lock is held and others wait. After a jump forward
// all keys have expired, and waiters are served in the order of their heartbeats: here the second one's comes first.
func clockJumps(w *World) {
	if w.Real {
		return // its clock is the machine's
	}
	sooner := func(o *lockkeeper.Options) { o.HeartbeatInterval = heartbeatInterval / 2 }
	offset := time.Duration(0)
	for _, jump := range []time.Duration{time.Hour, -2 * time.Hour} {
		holder, turns := w.queueOf(w.Process(), w.Process(sooner))
		offset += jump
		func() {
			defer w.shiftClock(offset)() // also if the case fails, or the bubble would not end
			if jump > 0 {                // by the server's clock everything has expired: the lease and every heartbeat
				w.awaitLoss(holder, time.Minute/3)
				slices.Reverse(turns)
			} else {
				time.Sleep(2 * heartbeatInterval)
				w.release(holder)
			}
			for i, ch := range turns {
				r := w.await(ch, time.Minute)
				w.must(r.err)
				deadline := r.lease.Deadline() // read it before asking the server: it may be renewed just then
				left, err := w.admin.PTTL(w.ctx(), w.P.Key("x")).Result()
				w.must(err)
				if until := time.Until(deadline); until > left {
					w.Errorf("jump %v: relied on for %v, but it expires at the server in %v", jump, until, left)
				}
				for _, later := range turns[i+1:] {
					w.expectNotGranted(later)
				}
				w.release(r.lease)
			}
		}()
	}
}

// shiftClock sets the embedded server's clock ahead of the real one by offset, where it advances, until stop.
func (w *World) shiftClock(offset time.Duration) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	w.mini.SetTime(time.Now().Add(offset))
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
				w.mini.SetTime(time.Now().Add(offset))
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}
