package conformance

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// Permits is what the semaphore does beside what every lock does.
var Permits = []Case{
	{Name: "44_limit_reached_but_not_exceeded", Test: limitReachedNotExceeded},
	{Name: "45_invalid_permit_counts_rejected", Test: invalidPermitCounts},
	{Name: "46_crashed_holders_permits_return_at_expiry", Test: crashedHoldersPermits},
	{Name: "46_unresponsive_holders_permits_return_at_expiry", Test: unresponsiveHoldersPermits},
	{Name: "47_release_in_other_order_by_other_processes", Test: releasedByOtherProcess},
	{Name: "47_ended_lease_returns_nothing", Test: endedLeaseReturnsNothing},
	{Name: "48_larger_deployed_limit_admits_waiters", Test: largerDeployedLimit},
	{Name: "48_set_limit_raises_and_lowers", Test: setLimit},
	{Name: "48_lowered_limit_refuses_larger_requests", Test: aboveLoweredLimit},
	{Name: "48_latest_callers_limit_applies", Test: latestCallersLimit},
	{Name: "49_heavy_waiter_not_starved", Test: heavyWaiter},
	{Name: "46_crashed_holders_permit_after_queue_moved", Test: crashedHolderAfterQueueMoved},
	{Name: "48_late_duplicate_set_limit_changes_nothing", Test: lateDuplicateSetLimit},
	{Name: "50_try_acquire_after_clock_set_back", Test: tryAcquireAfterClockSetBack},
	{Name: "61_permit_outage_is_not_contention", Alone: true, Test: outageForPermits},
	{Name: "inspect_permits", Test: inspectPermits},
}

// per is a window that is short, because on a real server it is waited for, and longer than a heartbeat.
const per = 2 * heartbeatInterval

// sem is the semaphore of a process.
func (p *Process) sem(limit int, change ...func(*semaphore.Options)) *semaphore.Semaphore {
	p.w.Helper()
	o := &semaphore.Options{TTL: ttl}
	for _, f := range change {
		f(o)
	}
	s, err := semaphore.New(p.Keeper, "x", limit, o)
	p.w.must(err)
	return s
}

func noRenewal(o *semaphore.Options) { o.NoRenewal = true }

// permits is an acquisition of n.
func permits(s *semaphore.Semaphore, n int) acquire {
	return func(ctx context.Context) (*lockkeeper.Lease, error) { return s.AcquireN(ctx, n) }
}

// available checks how many permits may be had.
func (w *World) available(s interface {
	Available(ctx context.Context) (int, error)
}, want int) {
	w.Helper()
	got, err := s.Available(w.ctx())
	w.must(err)
	if got != want {
		w.Fatalf("%d permits may be had, want %d", got, want)
	}
}

// refused checks that a try for n is refused for the moment.
func (w *World) refused(s *semaphore.Semaphore, n int) error {
	w.Helper()
	_, err := s.TryAcquireN(w.ctx(), n)
	w.checkError(err, lockkeeper.ErrNotAcquired)
	return err
}

// nextEvent returns the next thing that a hook reported.
func nextEvent[T any](w *World, reported chan T) (x T) {
	w.Helper()
	select {
	case x = <-reported:
	case <-time.After(10 * time.Second):
		w.Fatal("the hook was not called")
	}
	return x
}

// checkAllKeysExpire checks that every key has its expiry.
func (w *World) checkAllKeysExpire() {
	w.Helper()
	all, err := w.admin.Keys(w.ctx(), "*").Result()
	w.must(err)
	for _, k := range all {
		if d, err := w.admin.PTTL(w.ctx(), k).Result(); err != nil || d == -1 {
			w.Errorf("%s has no expiry (%v, %v)", k, d, err)
		}
	}
}

// contend acquires with random weights from several processes at once, and calls f with what it got.
func (w *World) contend(processes, goroutines, rounds, limit int, f func(*lockkeeper.Lease, int)) {
	seed := rand.Uint64()
	w.Logf("seed %d", seed)
	var list []*semaphore.Semaphore
	for range processes {
		list = append(list, w.Process().sem(limit))
	}
	parallel(processes*goroutines, func(i int) {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		for range rounds {
			n := 1 + r.IntN(limit)
			lease, err := list[i%processes].AcquireN(w.ctx(), n)
			if err != nil {
				w.Error(err)
				return
			}
			f(lease, n)
			time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
		}
	})
}

func limitReachedNotExceeded(w *World) {
	const limit = 5
	var taken, peak, over atomic.Int64
	w.contend(4, 4, 12, limit, func(lease *lockkeeper.Lease, n int) {
		now := taken.Add(int64(n))
		if now > limit {
			over.Add(1)
		}
		for old := peak.Load(); now > old && !peak.CompareAndSwap(old, now); old = peak.Load() {
		}
		time.Sleep(time.Millisecond)
		taken.Add(-int64(n))
		w.release(lease)
	})
	if peak.Load() != limit || over.Load() != 0 {
		w.Errorf("%d permits of %d at the most, %d times too many", peak.Load(), limit, over.Load())
	}
	w.available(w.Process().sem(limit), limit)
	w.checkClean()
}

func invalidPermitCounts(w *World) {
	p := w.Process()
	p.Net.ResetCount()
	for _, s := range []*semaphore.Semaphore{p.sem(3), p.sem(3, noRenewal)} {
		for _, n := range []int{0, -1, 4} {
			_, err := s.AcquireN(w.ctx(), n)
			w.checkError(err, lockkeeper.ErrInvalid)
			_, err = s.TryAcquireN(w.ctx(), n)
			w.checkError(err, lockkeeper.ErrInvalid)
			w.checkError(s.DoN(w.ctx(), n, func(context.Context, uint64) error { return nil }), lockkeeper.ErrInvalid)
		}
		for _, limit := range []int{0, -1, 1_000_000_001} {
			w.checkError(s.SetLimit(w.ctx(), limit), lockkeeper.ErrInvalid)
		}
	}
	if n := p.Net.Scripts(); n != 0 {
		w.Errorf("%d scripts were sent", n)
	}

	// The limit in force is lower than this caller's.
	s := p.sem(3)
	lease, err := s.TryAcquire(w.ctx())
	w.must(err)
	w.release(lease)
	w.must(s.SetLimit(w.ctx(), 2))
	ctx, cancel := context.WithTimeout(w.ctx(), 10*time.Second)
	_, err = s.AcquireN(ctx, 3)
	cancel()
	w.checkError(err, semaphore.ErrAboveLimit)
	_, err = s.TryAcquireN(w.ctx(), 3)
	w.checkError(err, semaphore.ErrAboveLimit)
	w.awaitWaiters("x", 0)
	w.checkClean()
}

func crashedHoldersPermits(w *World) { w.permitsReturnAfterLease((*Process).Crash) }

// unresponsiveHoldersPermits: the process is as good as frozen; the connections stay.
func unresponsiveHoldersPermits(w *World) {
	w.permitsReturnAfterLease(func(p *Process) { p.Net.Blackhole() })
}

// permitsReturnAfterLease takes two of three permits in a process to which something happens then, and waits for them.
func (w *World) permitsReturnAfterLease(happens func(*Process)) {
	a := w.Process()
	gone := w.mustAcquire(permits(a.sem(3), 2))
	b := w.Process().sem(3)
	held := w.mustAcquire(permits(b, 1))
	waits := w.acquireAsync(w.ctx(), 1, permits(w.Process().sem(3), 2))
	happens(a)
	ends := time.Now().Add(ttl)
	w.refused(b, 1)
	r := w.await(waits, ttl+50*time.Millisecond)
	w.must(r.err)
	if late := r.at.Sub(ends); !w.Real && late > 50*time.Millisecond {
		w.Errorf("the permits returned %v after the lease had ended", late)
	}
	w.checkError(gone.Err(), lockkeeper.ErrLost)
	w.must(held.Err())
	w.available(b, 0)
	a.Net.Restore()
	w.checkError(gone.Release(w.ctx()), lockkeeper.ErrLost)
	w.available(b, 0)
	w.release(r.lease)
	w.available(b, 2)
	w.release(held)
	w.available(b, 3)
	w.checkClean()
}

func releasedByOtherProcess(w *World) {
	a, b := w.Process().sem(6, noRenewal), w.Process().sem(6, noRenewal)
	one, two, three := w.mustAcquire(permits(a, 1)), w.mustAcquire(permits(b, 2)), w.mustAcquire(permits(a, 3))
	w.available(b, 0)
	free := 0
	for _, x := range []struct {
		lease *lockkeeper.Lease
		n     int
	}{{two, 2}, {three, 3}, {one, 1}} {
		other, err := w.Process().sem(6).Adopt(w.ctx(), x.lease.Token())
		w.must(err)
		if other.Fence() != x.lease.Fence() {
			w.Errorf("fence %d became %d", x.lease.Fence(), other.Fence())
		}
		w.release(other)
		free += x.n
		w.available(a, free)
	}
	w.checkOnlyTombstones() // of those that were adopted
}

func endedLeaseReturnsNothing(w *World) {
	s, t := w.Process().sem(4, noRenewal), w.Process().sem(4)
	twice := w.mustAcquire(permits(s, 2))
	lost := w.mustAcquire(permits(s, 2))
	w.release(twice)
	w.available(t, 2)
	w.release(twice)
	w.available(t, 2)
	copied, err := t.Adopt(w.ctx(), lost.Token())
	w.must(err)
	w.release(copied)
	w.available(t, 4)
	w.checkError(lost.Release(w.ctx()), lockkeeper.ErrLost)
	w.available(t, 4)

	lost = w.mustAcquire(permits(s, 3))
	w.awaitLoss(lost, ttl)
	w.eventually("the server to end it as well", func() bool {
		n, err := t.Available(w.ctx())
		return err == nil && n == 4
	})
	held := w.mustAcquire(permits(t, 3))
	w.checkError(lost.Release(w.ctx()), lockkeeper.ErrLost)
	w.checkError(lost.Extend(w.ctx(), ttl), lockkeeper.ErrLost)
	w.available(t, 1)
	w.release(held)
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
	if e := nextEvent(w, changed); e.Limit != 3 || !strings.HasPrefix(e.Token, process.ID()+":") {
		w.Errorf("LimitChanged reported %+v", e)
	}
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
	if n, err := w.admin.ZCount(w.ctx(), w.queueKey("x"), "-inf", protocol.BehindWaiters).Result(); err != nil || n != 0 {
		w.Errorf("%d queued after the limit was raised, %v", n, err)
	}
	leases := []*lockkeeper.Lease{one, two, w.expectGranted(three), w.expectGranted(four)}
	if e := nextEvent(w, changed); e.Limit != 5 || e.Kind != "semaphore" || e.Name != "x" {
		w.Errorf("LimitChanged reported %+v", e)
	}
	w.available(s, 0)

	// Lowered, leases go on, and nobody gets in until enough have ended.
	w.must(s.SetLimit(w.ctx(), 2))
	w.must(s.SetLimit(w.ctx(), 2))
	if e := nextEvent(w, changed); e.Limit != 2 || len(changed) != 0 {
		w.Errorf("LimitChanged reported %+v and %d more", e, len(changed))
	}
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
		w.checkError(w.await(ch, heartbeatInterval+10*time.Millisecond).err, semaphore.ErrAboveLimit)
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

	// The head of the queue is notified at once.
	held = []*lockkeeper.Lease{w.mustAcquire(permits(s, 3))}
	w.must(s.SetLimit(w.ctx(), 5))
	slow := w.Process(slowHeartbeats).sem(5)
	first := w.acquireAsync(w.ctx(), 1, permits(slow, 5))
	w.must(s.SetLimit(w.ctx(), 3))
	w.checkError(w.await(first, 10*time.Millisecond).err, semaphore.ErrAboveLimit)
	w.release(held[0])
	w.checkClean()
}

// latestCallersLimit: SetLimit is in force for those who know the same limit as before, until one comes who knows another.
func latestCallersLimit(w *World) {
	changed := make(chan int, 10)
	hook := func(o *lockkeeper.Options) {
		o.Hooks.LimitChanged = func(e lockkeeper.Event) { changed <- e.Limit }
	}
	a, b := w.Process(hook).sem(4), w.Process(hook).sem(4)
	w.release(w.mustAcquire(permits(a, 1)))
	w.must(a.SetLimit(w.ctx(), 2))
	lease := w.mustAcquire(permits(b, 1))
	w.available(b, 1)
	w.release(lease)
	c := w.Process(hook).sem(7)
	lease = w.mustAcquire(permits(c, 1))
	w.available(b, 6)
	w.release(lease)
	lease = w.mustAcquire(permits(a, 1)) // the old constant counts again, as that of the latest caller
	w.available(b, 3)
	w.release(lease)
	for _, want := range []int{2, 7, 4} {
		if got := nextEvent(w, changed); got != want {
			w.Errorf("LimitChanged reported %d, want %d", got, want)
		}
	}
	if len(changed) != 0 {
		w.Errorf("LimitChanged reported %d, which was in force already", <-changed)
	}
	w.must(w.admin.Del(w.ctx(), w.P.Key("x"), w.metaKey("x")).Err())
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

func inspectPermits(w *World) {
	p := w.Process()
	s := p.sem(5)
	list, err := s.Holders(w.ctx())
	w.must(err)
	if len(list) != 0 {
		w.Errorf("holders of nothing: %+v", list)
	}
	leases := []*lockkeeper.Lease{w.mustAcquire(permits(s, 1)), w.mustAcquire(permits(s, 3))}
	ctx, cancel := context.WithCancel(w.ctx())
	waits := []chan result{w.acquireAsync(ctx, 1, permits(s, 4)), w.acquireAsync(ctx, 2, permits(s, 2))}
	list, err = s.Holders(w.ctx())
	w.must(err)
	if len(list) != 2 {
		w.Fatalf("holders %+v", list)
	}
	for _, h := range list {
		want := map[string]int{leases[0].Token(): 1, leases[1].Token(): 3}[h.Token]
		if h.Permits != want || h.Keeper != p.ID() || h.ExpiresIn <= 0 || h.ExpiresIn > ttl || h.Fence != leases[0].Fence() && h.Fence != leases[1].Fence() {
			w.Errorf("holder %+v, want %d permits", h, want)
		}
	}
	queue, err := s.Waiters(w.ctx())
	w.must(err)
	if len(queue) != 2 || queue[0].Permits != 4 || queue[1].Permits != 2 || !queue[0].Alive || queue[0].Keeper != p.ID() {
		w.Errorf("waiters %+v", queue)
	}
	w.available(s, 1)
	cancel()
	for _, ch := range waits {
		w.checkError(w.await(ch, 0).err, lockkeeper.ErrNotAcquired, context.Canceled)
	}
	w.awaitWaiters("x", 0)
	for _, l := range leases {
		w.release(l)
	}
	w.checkClean()
}

// outageForPermits: what the semaphore has beside Lock.
func outageForPermits(w *World) {
	p := w.Process()
	s := p.sem(1)
	w.mustAcquire(permits(s, 1))
	err := w.callWithTimeout(heartbeatInterval, func(ctx context.Context) error { _, err := s.Acquire(ctx); return err })
	w.checkError(err, lockkeeper.ErrNotAcquired)
	defer w.freeze(p)()
	w.expectUnavailable("Acquire", heartbeatInterval, func(ctx context.Context) error { _, err := s.Acquire(ctx); return err })
	w.expectUnavailable("SetLimit", heartbeatInterval, func(ctx context.Context) error { return s.SetLimit(ctx, 2) })
	w.expectUnavailable("Available", heartbeatInterval, errorOnly(s.Available))
}
