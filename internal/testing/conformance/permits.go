package conformance

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// Permits is what the semaphore does beside what every lock does.
var Permits = append([]Case{
	{Name: "44_limit_reached_but_not_exceeded", Test: limitReachedNotExceeded},
	{Name: "46_crashed_holders_permits_return_at_expiry", Test: crashedHoldersPermits},
	{Name: "47_ended_lease_returns_nothing", Test: endedLeaseReturnsNothing},
	{Name: "48_larger_deployed_limit_admits_waiters", Test: largerDeployedLimit},
	{Name: "48_set_limit_raises_and_lowers", Test: setLimit},
	{Name: "48_lowered_limit_refuses_larger_requests", Test: aboveLoweredLimit},
	{Name: "49_heavy_waiter_not_starved", Test: heavyWaiter},
	{Name: "48_late_duplicate_set_limit_changes_nothing", Test: lateDuplicateSetLimit},
}, limiterCases...)

// per is a window that is short, because on a real server it is waited for, and longer than a heartbeat.
const per = 2 * heartbeatInterval

func (p *Process) sem(limit int) *semaphore.Semaphore {
	p.w.Helper()
	return must.Get(semaphore.New(p.Keeper, "x", limit, &semaphore.Options{TTL: ttl}))(p.w)
}

func permits(s *semaphore.Semaphore, n int) acquire {
	return func(ctx context.Context) (*lockkeeper.Lease, error) { return s.AcquireN(ctx, n) }
}

func (w *World) refused(s *semaphore.Semaphore, n int) {
	w.Helper()
	w.checkError(errorOf(s.TryAcquireN(w.ctx(), n)), lockkeeper.ErrNotAcquired)
}

func limitReachedNotExceeded(w *World) {
	const limit = 5
	var taken, peak, over atomic.Int64
	w.contend(4, 4, 12, limit, func(p *Process) limiter { return w.makers()[0](p, limit) }, func(g grant, n int) {
		now := taken.Add(int64(n))
		if now > limit {
			over.Add(1)
		}
		for old := peak.Load(); now > old && !peak.CompareAndSwap(old, now); old = peak.Load() {
		}
		time.Sleep(time.Millisecond)
		taken.Add(-int64(n))
		w.giveBack(g)
	})
	check.That(w, peak.Load() == limit && over.Load() == 0, "%d permits at the most, %d times too many", peak.Load(), over.Load())
	w.available(w.Process().sem(limit), limit)
	w.checkClean()
}

// crashedHoldersPermits takes two of three permits in a process that crashes then, and waits for them.
func crashedHoldersPermits(w *World) {
	a := w.Process()
	gone := w.mustAcquire(permits(a.sem(3), 2))
	b := w.Process().sem(3)
	held := w.mustAcquire(permits(b, 1))
	waits := w.acquireAsync(w.ctx(), 1, permits(w.Process().sem(3), 2))
	a.Crash()
	ends := time.Now().Add(ttl)
	w.refused(b, 1)
	r := w.awaitGrant(waits, ttl+50*time.Millisecond)
	check.That(w, w.Real || r.at.Sub(ends) <= 50*time.Millisecond, "the permits returned %v after the lease had ended", r.at.Sub(ends))
	w.checkError(gone.Err(), lockkeeper.ErrLost)
	w.must(held.Err())
	w.available(b, 0)
	a.Net.Restore()
	w.checkError(gone.Release(w.ctx()), lockkeeper.ErrLost)
	w.checkError(gone.Extend(w.ctx(), ttl), lockkeeper.ErrLost)
	w.available(b, 0)
	w.release(r.lease)
	w.available(b, 2)
	w.release(held)
	w.available(b, 3)
	w.checkClean()
}

func endedLeaseReturnsNothing(w *World) {
	s, t := w.Process().sem(4), w.Process().sem(4)
	twice := w.mustAcquire(permits(s, 2))
	lost := w.mustAcquire(permits(s, 2))
	w.release(twice)
	w.available(t, 2)
	w.release(twice)
	w.available(t, 2)
	copied := must.Get(t.Adopt(w.ctx(), lost.Token()))(w)
	w.release(copied)
	w.available(t, 4)
	w.checkError(lost.Release(w.ctx()), lockkeeper.ErrLost)
	w.available(t, 4)
	w.checkOnlyTombstones() // of the one that was adopted
}

func largerDeployedLimit(w *World) {
	old := w.Process().sem(1)
	held := w.mustAcquire(permits(old, 1))
	var waits []chan result
	for i := range 3 {
		waits = append(waits, w.acquireAsync(w.ctx(), int64(i+1), permits(w.Process().sem(1), 1)))
	}
	changed := make(chan lockkeeper.Event, 10)
	process := w.Process(func(o *lockkeeper.Options) {
		o.Hooks.LimitChanged = func(e lockkeeper.Event) { changed <- e }
	})
	newer := process.sem(3)
	w.refused(newer, 1) // it is behind the queue, which its limit admits
	a, b := w.expectGranted(waits[0]), w.expectGranted(waits[1])
	e := nextEvent(w, changed)
	check.That(w, e.Limit == 3 && strings.HasPrefix(e.Token, process.ID()), "LimitChanged reported %+v", e)
	w.awaitWaiters("x", 1)
	w.expectNotGranted(waits[2])
	w.must(held.Err())
	w.release(a)
	w.release(w.expectGranted(waits[2]))
	w.release(b)
	w.release(held)
	w.checkClean()
}

func setLimit(w *World) {
	changed := make(chan lockkeeper.Event, 10)
	s := w.Process(func(o *lockkeeper.Options) {
		o.Hooks.LimitChanged = func(e lockkeeper.Event) { changed <- e }
	}).sem(2)
	one, two := w.mustAcquire(permits(s, 1)), w.mustAcquire(permits(s, 1))
	three := w.acquireAsync(w.ctx(), 1, permits(s, 1))
	four := w.acquireAsync(w.ctx(), 2, permits(w.Process().sem(2), 2))
	w.must(s.SetLimit(w.ctx(), 5))
	n, err := w.admin.ZCount(w.ctx(), w.queueKey("x"), "-inf", protocol.BehindWaiters).Result()
	check.That(w, err == nil && n == 0, "%d queued after the limit was raised, %v", n, err)
	leases := []*lockkeeper.Lease{one, two, w.expectGranted(three), w.expectGranted(four)}
	e := nextEvent(w, changed)
	check.That(w, e.Limit == 5 && e.Kind == "semaphore" && e.Name == "x", "LimitChanged reported %+v", e)
	w.available(s, 0)

	// Lowered, leases go on, and nobody gets in until enough have ended.
	w.must(s.SetLimit(w.ctx(), 2))
	w.must(s.SetLimit(w.ctx(), 2))
	e = nextEvent(w, changed)
	check.That(w, e.Limit == 2 && len(changed) == 0, "LimitChanged reported %+v and %d more", e, len(changed))
	waits := w.acquireAsync(w.ctx(), 1, permits(s, 1))
	time.Sleep(2 * ttl)
	for _, l := range leases {
		w.must(l.Err())
	}
	w.available(s, 0)
	w.release(leases[3]) // of five two are back
	w.release(leases[2])
	w.available(s, 0)
	w.expectNotGranted(waits)
	w.release(leases[1])
	w.release(w.expectGranted(waits))
	w.available(s, 1)
	w.release(leases[0])
	w.checkClean()
}

func aboveLoweredLimit(w *World) {
	s := w.Process().sem(5)
	held := []*lockkeeper.Lease{w.mustAcquire(permits(s, 3)), w.mustAcquire(permits(s, 2))}
	light := w.acquireAsync(w.ctx(), 1, permits(s, 2))
	p := w.Process()
	heavy := []chan result{w.acquireAsync(w.ctx(), 2, permits(p.sem(5), 4)), w.acquireAsync(w.ctx(), 3, permits(p.sem(5), 5))}
	last := w.acquireAsync(w.ctx(), 4, permits(p.sem(5), 3))
	w.must(s.SetLimit(w.ctx(), 3)) // all is taken, and stays so
	for _, ch := range heavy {
		w.checkError(await(w, ch, heartbeatInterval+10*time.Millisecond).err, semaphore.ErrAboveLimit)
	}
	w.awaitWaiters("x", 2)
	w.expectNotGranted(light)
	w.release(held[0])
	w.expectNotGranted(light)
	w.release(held[1])
	lease := w.expectGranted(light)
	w.expectNotGranted(last)
	w.release(lease)
	w.release(w.expectGranted(last))
	w.checkClean()
}

func heavyWaiter(w *World) {
	ps := []*Process{w.Process(), w.Process(), w.Process()}
	light := w.mustAcquire(permits(ps[0].sem(3), 1))
	heavy := w.acquireAsync(w.ctx(), 1, permits(ps[1].sem(3), 3))
	var behind []chan result
	for i := range 6 {
		behind = append(behind, w.acquireAsync(w.ctx(), int64(i+2), permits(ps[i%3].sem(3), 1)))
	}
	s := ps[2].sem(3)
	w.available(s, 2)
	w.refused(s, 1) // there is room, but not for those who do not wait
	time.Sleep(2 * heartbeatInterval)
	w.expectNotGranted(heavy)
	for _, ch := range behind {
		w.expectNotGranted(ch)
	}
	w.release(light)
	lease := w.expectGranted(heavy)
	for _, ch := range behind {
		w.expectNotGranted(ch)
	}
	w.release(lease)
	var leases []*lockkeeper.Lease
	for _, ch := range behind[:3] {
		leases = append(leases, w.expectGranted(ch))
	}
	w.expectNotGranted(behind[3])
	for i, l := range leases {
		w.release(l)
		w.release(w.expectGranted(behind[3+i]))
	}
	w.checkClean()
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
	e := nextEvent(w, reported)
	check.That(w, e.Limit == 5, "LimitChanged reported %d", e.Limit)
	w.must(s.SetLimit(w.ctx(), 8))
	w.must(p.Net.Replay())
	w.available(s, 7)
	w.release(lease)
}
