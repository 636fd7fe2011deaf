package conformance

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// The cases in this file are of primitives that serve waiters in order.

type waiterLister interface {
	Waiters(ctx context.Context) ([]lockkeeper.Waiter, error)
}

// queueOf makes processes wait for x one after the other, behind a holder, and returns their results.
func (w *World) queueOf(ps ...*Process) (holder *lockkeeper.Lease, turns []chan result) {
	w.Helper()
	holder = w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	for i, p := range ps {
		turns = append(turns, w.acquireAsync(w.ctx(), int64(i+1), p.Lock("x", withTTL(time.Minute)).Lock))
	}
	return holder, turns
}

func (w *World) expectGranted(ch chan result) *lockkeeper.Lease {
	w.Helper()
	return w.awaitGrant(ch, 0).lease
}

func (w *World) expectNotGranted(ch chan result) {
	w.Helper()
	select {
	case r := <-ch:
		w.Fatalf("the wait ended out of order: %+v, %v", r.grant, r.err)
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
			must.Report(w, err)
			order <- i
			_ = lease.Release(w.ctx())
		}()
		w.awaitWaiters("x", int64(i+1))
	}
	w.release(first)
	for i := range 20 {
		got := <-order
		check.That(w, got == i, "grant %d went to waiter %d", i, got)
	}
	w.checkClean()
}

// tryLockDoesNotJump deletes the lease, so that the lock is free while another process waits.
func tryLockDoesNotJump(w *World) {
	_, turns := w.queueOf(w.Process())
	w.must(w.admin.Del(w.ctx(), w.P.Key("x")).Err())
	newcomer := w.Process().Lock("x")
	w.checkError(errorOf(newcomer.TryLock(w.ctx())), lockkeeper.ErrNotAcquired)
	w.release(w.expectGranted(turns[0]))
	w.checkFree(newcomer)
}

// disconnectedKeepsPosition checks that a waiter whose connections break is skipped while it is away, and rejoins at
// its old position.
func disconnectedKeepsPosition(w *World) {
	slow := func(o *lockkeeper.Options) { o.HeartbeatTimeout = time.Minute }
	ps := []*Process{w.Process(slow), w.Process(slow), w.Process(slow)}
	holder, turns := w.queueOf(ps...)
	ps[0].Crash()
	w.awaitSubscription(ps[0], false)
	w.release(holder)
	lease := w.expectGranted(turns[1])
	w.awaitWaiters("x", 1)
	ps[0].Net.Restore()
	w.awaitSubscription(ps[0], true)
	w.awaitWaiters("x", 2)
	w.release(lease)
	lease = w.expectGranted(turns[0])
	w.expectNotGranted(turns[2])
	w.release(lease)
	w.release(w.expectGranted(turns[2]))
}

// inspectQueue also checks that the Queued hook gets positions with replies and heartbeats.
func inspectQueue(w *World) {
	var position atomic.Int64
	ps := []*Process{w.Process(), w.Process(), w.Process(func(o *lockkeeper.Options) {
		o.Hooks.Queued = func(e lockkeeper.Event) { position.Store(int64(e.Position)) }
	})}
	holder, turns := w.queueOf(ps...)
	w.eventually("the position in a reply", func() bool { return position.Load() == 2 })
	time.Sleep(2 * heartbeatInterval)
	observer := w.Process()
	l := observer.Lock("x").(waiterLister)
	list := must.Get(l.Waiters(w.ctx()))(w)
	must.That(w, len(list) == len(ps), "%d waiters of %d", len(list), len(ps))
	for i, x := range list {
		waited := x.WaitTime - 2*heartbeatInterval
		check.That(w, x.Keeper == ps[i].ID() && x.Alive && waited >= -time.Millisecond && waited <= w.slack()+10*time.Millisecond,
			"waiter %d is %+v, want one of keeper %s", i, x, ps[i].ID())
	}
	ps[1].Crash()
	w.eventually("the heartbeat to lapse", func() bool {
		list := must.Get(l.Waiters(w.ctx()))(w)
		return len(list) == 2 || len(list) == 3 && !list[1].Alive && list[0].Alive && list[2].Alive
	})
	w.release(holder)
	first := w.expectGranted(turns[0])
	w.eventually("the position in a heartbeat", func() bool { return position.Load() == 0 })
	w.release(first)
	w.release(w.expectGranted(turns[2]))
	list = must.Get(l.Waiters(w.ctx()))(w)
	check.That(w, len(list) == 0, "waiters %+v of an empty queue", list)
	w.must(observer.Close())
	w.checkError(errorOf(l.Waiters(w.ctx())), lockkeeper.ErrClosed)
	w.checkClean()
}

// clockJumps sets the server's clock forward and back while the lock is held and others wait. After a jump forward
// all keys have expired, and waiters are served in the order of their heartbeats: here the second one's comes first.
func clockJumps(w *World) {
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
				r := w.awaitGrant(ch, time.Minute)
				deadline := r.lease.Deadline() // read it before asking the server: it may be renewed just then
				left := must.Get(w.admin.PTTL(w.ctx(), w.P.Key("x")).Result())(w)
				check.That(w, time.Until(deadline) <= left, "jump %v: relied on for longer than the %v at the server", jump, left)
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
	first := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	var ps []*Process
	var turns []chan result
	for i := range 8 {
		ps = append(ps, w.Process(slowHeartbeats))
		turns = append(turns, w.acquireAsync(w.ctx(), int64(i+1), ps[i].Lock("x").Lock))
	}
	w.release(first)
	for i, ch := range turns {
		r := w.awaitGrant(ch, ttl+50*time.Millisecond)
		if i == 5 || i == 6 { // it receives its message, but its renewals and its release are lost
			ps[i].Crash()
			continue
		}
		w.release(r.lease)
	}
}

func cancelMiddleWaiter(w *World) {
	holder, turns := w.queueOf(w.Process(), w.Process())
	ctx, cancel := context.WithCancel(w.ctx())
	gone := w.acquireAsync(ctx, 3, w.Process().Lock("x").Lock)
	last := w.acquireAsync(w.ctx(), 4, w.Process().Lock("x").Lock)
	cancel()
	w.checkError(await(w, gone, 0).err, lockkeeper.ErrNotAcquired, context.Canceled)
	w.awaitWaiters("x", 3)
	w.release(holder)
	for _, ch := range append(turns, last) {
		w.release(w.expectGranted(ch))
	}
	w.checkClean()
}

// clockJumpsPastLease sets the server's clock past the end of a lease, so the next waiter is granted the lock. The
// first holder learns of it by its next renewal; until then there are two.
func clockJumpsPastLease(w *World) {
	first := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	defer w.mini.SetTime(time.Time{})
	defer w.shiftClock(time.Hour)()
	second := w.hold(w.Process().Lock("x"))
	check.Is(w, first.Err(), nil, "the first holder considers its lease lost before its renewal")
	w.checkFenceRises(first, second)
	w.awaitLoss(first, time.Minute/3)
	w.release(second)
}

// clockSetBackWhileHeld sets the server's clock back while the lock is held. The lease is renewed as before. After a
// crash of its holder it would last until the clock has caught up; the next waiter's heartbeat shortens it to its
// ttl. A primitive without a queue has no waiter that does so.
func clockSetBackWhileHeld(w *World) {
	p := w.Process()
	first := w.hold(p.Lock("x"))
	defer w.mini.SetTime(time.Time{})
	defer w.shiftClock(-time.Hour)()
	// A server stores the time at which a key expires, the embedded one the time that is left, so this shifts it by
	// hand.
	back := func() {
		key := w.P.Key("x")
		w.must(w.admin.PExpire(w.ctx(), key, w.admin.PTTL(w.ctx(), key).Val()+time.Hour).Err())
	}
	back()
	time.Sleep(2 * ttl)
	w.must(first.Err())
	p.Crash()
	back() // a renewal may have replaced it
	ch := w.lockAsync(w.ctx(), w.Process().Lock("x"))
	r := w.awaitGrant(ch, ttl+2*heartbeatInterval)
	w.checkFenceRises(first, r.lease)
	w.release(r.lease)
}
