package conformance

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// Permits are the cases of the semaphore alone.
var Permits = []Case{
	{"44_limit_reached_but_not_exceeded", false, false, limitReachedNotExceeded},
	{"45_invalid_permit_counts_rejected", false, false, invalidPermitCounts},
	{"46_crashed_holders_permits_return_at_expiry", false, false, crashedHoldersPermits},
	{"46_unresponsive_holders_permits_return_at_expiry", false, false, unresponsiveHoldersPermits},
	{"47_release_in_other_order_by_other_processes", false, false, releasedByOtherProcess},
	{"47_ended_lease_returns_nothing", false, false, endedLeaseReturnsNothing},
	{"48_larger_deployed_limit_admits_waiters", false, false, largerDeployedLimit},
	{"48_set_limit_raises_and_lowers", false, false, setLimit},
	{"48_lowered_limit_refuses_larger_requests", false, false, aboveLoweredLimit},
	{"48_latest_callers_limit_applies", false, false, latestCallersLimit},
	{"49_heavy_waiter_not_starved", false, false, heavyWaiter},
	{"50_window_never_exceeds_limit", false, false, windowNeverExceeded},
	{"50_window_admits_waiters_in_order", false, false, windowAdmitsInOrder},
	{"50_waiting_for_window_takes_few_commands", false, false, windowWaitCommands},
	{"50_wait_past_deadline_refused_immediately", false, false, refusedImmediately},
	{"50_release_keeps_window_permits_taken", false, false, releaseKeepsWindowPermits},
	{"50_wait_cancelled_at_permit_return_takes_nothing", false, false, cancelAtPermitReturn},
	{"50_both_limits_in_one_request", false, false, bothLimits},
	{"50_lost_wakeup_loses_no_permit", false, false, lostWakeupLosesNoPermit},
	{"50_lost_reply_takes_permits_once", false, false, lostReplyTakesPermitsOnce},
	{"50_clock_set_back_does_not_prolong_window", false, false, windowClockSetBack},
	{"50_data_loss_frees_permits", false, false, permitsAfterDataLoss},
	{"50_receipt_holds_nothing", false, false, receiptHoldsNothing},
	{"46_crashed_holders_permit_after_queue_moved", false, false, crashedHolderAfterQueueMoved},
	{"48_raised_limit_notifies_head", false, false, raisedLimitNotifiesHead},
	{"48_callers_larger_limit_notifies_head", false, false, callersLimitNotifiesHead},
	{"48_late_duplicate_set_limit_changes_nothing", false, false, lateDuplicateSetLimit},
	{"48_set_limit_of_other_kind", false, false, setLimitOfOtherKind},
	{"50_unused_permits_notify_head", false, false, unusedPermitsNotifyHead},
	{"50_dead_waiters_are_ignored", false, false, deadWaitersIgnored},
	{"50_late_duplicates_take_nothing", false, false, lateDuplicatesOfPermits},
	{"50_submillisecond_window_rounded_up", false, false, submillisecondWindow},
	{"50_try_acquire_after_clock_set_back", false, false, tryAcquireAfterClockSetBack},
	{"50_metadata_outlasts_window", false, false, metadataOutlastsWindow},
	{"54_close_during_window", false, false, closeDuringWindow},
	{"61_permit_outage_is_not_contention", false, true, outageForPermits},
	{"inspect_permits", false, false, inspectPermits},
}

// per is a short window, because real servers make tests wait for it, but longer than a heartbeat.
const per = 2 * heartbeatInterval

// sem returns the semaphore of a process.
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

// inWindow makes permits return by the clock, and by nothing else.
func inWindow(d time.Duration) func(*semaphore.Options) {
	return func(o *semaphore.Options) { o.TTL, o.Per = 0, d }
}

// bothLimitsOf makes permits return by the clock, and be held as well, so many at once.
func bothLimitsOf(d time.Duration, atOnce int) func(*semaphore.Options) {
	return func(o *semaphore.Options) { o.Per, o.AtOnce = d, atOnce }
}

// permits acquires n permits.
func permits(s *semaphore.Semaphore, n int) acquire {
	return func(ctx context.Context) (*lockkeeper.Lease, error) { return s.Acquire(ctx, n) }
}

// available checks how many permits are available.
func (w *World) available(s *semaphore.Semaphore, want int) {
	w.Helper()
	got, err := s.Available(w.ctx())
	w.must(err)
	if got != want {
		w.Fatalf("%d permits are available, want %d", got, want)
	}
}

// refused checks that a try for n permits is refused.
func (w *World) refused(s *semaphore.Semaphore, n int) error {
	w.Helper()
	_, err := s.TryAcquire(w.ctx(), n)
	w.checkError(err, lockkeeper.ErrNotAcquired)
	return err
}

// wantLimitedError checks that an error says when to retry.
func (w *World) wantLimitedError(err error) *semaphore.RateError {
	w.Helper()
	var rate *semaphore.RateError
	if !errors.As(err, &rate) {
		w.Fatalf("the error does not say when to retry: %v", err)
	}
	if rate.RetryAfter <= 0 {
		w.Fatalf("RetryAfter is %v", rate.RetryAfter)
	}
	return rate
}

// nextEvent returns the next event of a hook.
func nextEvent[T any](w *World, reported chan T) (x T) {
	w.Helper()
	select {
	case x = <-reported:
	case <-time.After(10 * time.Second):
		w.Fatal("the hook was not called")
	}
	return x
}

// checkAllKeysExpire checks that every key has an expiry.
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

// contend acquires with random weights from several processes at once, and calls f with each lease.
func (w *World) contend(processes, goroutines, rounds, limit int, change func(*semaphore.Options), f func(*lockkeeper.Lease, int)) {
	seed := rand.Uint64()
	w.Logf("seed %d", seed)
	var list []*semaphore.Semaphore
	for range processes {
		list = append(list, w.Process().sem(limit, change))
	}
	parallel(processes*goroutines, func(i int) {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		for range rounds {
			n := 1 + r.IntN(limit)
			lease, err := list[i%processes].Acquire(w.ctx(), n)
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
	w.contend(4, 4, 12, limit, func(*semaphore.Options) {}, func(lease *lockkeeper.Lease, n int) {
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
	for _, s := range []*semaphore.Semaphore{p.sem(3), p.sem(9, bothLimitsOf(per, 3)), p.sem(3, inWindow(per))} {
		for _, n := range []int{0, -1, 4} {
			_, err := s.Acquire(w.ctx(), n)
			w.checkError(err, lockkeeper.ErrInvalid)
			_, err = s.TryAcquire(w.ctx(), n)
			w.checkError(err, lockkeeper.ErrInvalid)
			w.checkError(s.Do(w.ctx(), n, func(context.Context, uint64) error { return nil }), lockkeeper.ErrInvalid)
		}
		for _, limit := range []int{0, -1, 1_000_000_001} {
			w.checkError(s.SetLimit(w.ctx(), limit), lockkeeper.ErrInvalid)
		}
	}
	if n := p.Net.Scripts(); n != 0 {
		w.Errorf("%d scripts were sent", n)
	}

	// The limit in force is lower than this caller's.
	for _, change := range []func(*semaphore.Options){func(*semaphore.Options) {}, inWindow(per)} {
		s := p.sem(3, change)
		lease, err := s.TryAcquire(w.ctx(), 1)
		w.must(err)
		w.release(lease)
		w.must(s.SetLimit(w.ctx(), 2))
		ctx, cancel := context.WithTimeout(w.ctx(), 10*time.Second)
		_, err = s.Acquire(ctx, 3)
		cancel()
		w.checkError(err, semaphore.ErrAboveLimit)
		_, err = s.TryAcquire(w.ctx(), 3)
		w.checkError(err, semaphore.ErrAboveLimit)
		w.awaitWaiters("x", 0)
	}
	w.checkClean()
}

func crashedHoldersPermits(w *World) { w.permitsReturnAfterLease((*Process).Crash) }

// unresponsiveHoldersPermits blocks the network of a process, as if it were frozen; the connections remain.
func unresponsiveHoldersPermits(w *World) {
	w.permitsReturnAfterLease(func(p *Process) { p.Net.Blackhole() })
}

// permitsReturnAfterLease takes two of three permits in a process that then fails, and waits for them.
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
		w.Errorf("the permits returned %v after the lease had expired", late)
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
	w.checkOnlyTombstones() // of adopted leases
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
	w.checkOnlyTombstones() // of the adopted lease
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
	w.refused(newer, 1) // it is behind the waiters, and admits them
	a, b := w.expectGranted(waits[0]), w.expectGranted(waits[1])
	if e := nextEvent(w, changed); e.Limit != 3 || !strings.HasPrefix(e.Token, process.ID()+":") {
		w.Errorf("LimitChanged with %+v", e)
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
	if n, err := w.admin.ZCard(w.ctx(), w.queueKey("x")).Result(); err != nil || n != 0 {
		w.Errorf("%d waiting after the limit was raised, %v", n, err)
	}
	leases := []*lockkeeper.Lease{one, two, w.expectGranted(three), w.expectGranted(four)}
	if e := nextEvent(w, changed); e.Limit != 5 || e.Kind != "semaphore" || e.Name != "x" {
		w.Errorf("LimitChanged with %+v", e)
	}
	w.available(s, 0)

	// After the limit is lowered, leases last, and nobody is granted permits until enough have ended.
	w.must(s.SetLimit(w.ctx(), 2))
	w.must(s.SetLimit(w.ctx(), 2))
	if e := nextEvent(w, changed); e.Limit != 2 || len(changed) != 0 {
		w.Errorf("LimitChanged with %+v and %d more", e, len(changed))
	}
	waits := w.acquireAsync(w.ctx(), 1, permits(s, 1))
	time.Sleep(2 * ttl)
	for _, l := range leases {
		w.must(l.Err())
	}
	w.available(s, 0)
	w.release(leases[3]) // two of five are free
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
	w.must(s.SetLimit(w.ctx(), 3)) // all are taken, and remain so
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

	// The head is notified at once.
	held = []*lockkeeper.Lease{w.mustAcquire(permits(s, 3))}
	w.must(s.SetLimit(w.ctx(), 5))
	slow := w.Process(slowHeartbeats).sem(5)
	first := w.acquireAsync(w.ctx(), 1, permits(slow, 5))
	w.must(s.SetLimit(w.ctx(), 3))
	w.checkError(w.await(first, 10*time.Millisecond).err, semaphore.ErrAboveLimit)
	w.release(held[0])
	w.checkClean()
}

// latestCallersLimit checks that SetLimit applies to callers with the same limit as before, until one arrives with
// another limit.
func latestCallersLimit(w *World) {
	changed := make(chan int, 10)
	hook := func(o *lockkeeper.Options) {
		o.Hooks.LimitChanged = func(e lockkeeper.Event) { changed <- e.Limit }
	}
	for _, change := range []func(*semaphore.Options){func(*semaphore.Options) {}, bothLimitsOf(time.Hour, 100)} {
		a, b := w.Process(hook).sem(4, change), w.Process(hook).sem(4, change)
		w.release(w.mustAcquire(permits(a, 1))) // with Per it does not come back
		away := 4 - func() int { n, err := a.Available(w.ctx()); w.must(err); return n }()
		w.must(a.SetLimit(w.ctx(), 2))
		lease := w.mustAcquire(permits(b, 1))
		w.available(b, 1-away)
		w.release(lease)
		c := w.Process(hook).sem(7, change)
		lease = w.mustAcquire(permits(c, 1))
		w.available(b, 6-2*away)
		w.release(lease)
		lease = w.mustAcquire(permits(a, 1)) // the old limit applies again, as that of the latest caller
		w.available(b, 3-3*away)
		w.release(lease)
		for _, want := range []int{2, 7, 4} {
			if got := nextEvent(w, changed); got != want {
				w.Errorf("LimitChanged with %d, want %d", got, want)
			}
		}
		if len(changed) != 0 {
			w.Errorf("LimitChanged with %d, which was in force already", <-changed)
		}
		w.must(w.admin.Del(w.ctx(), w.P.Key("x"), "{lock:x}:semaphore:meta").Err())
	}
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
	w.refused(s, 1) // there are free permits, but waiters come first
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

// taking is permits granted at a time of the server's clock.
type taking struct {
	us int64
	n  int
}

// checkWindows checks that no window of a length has more than the limit. A fence is the server's µs.
func (w *World) checkWindows(list []taking, d time.Duration, limit int) {
	w.Helper()
	if !w.Real { // with many grants in one µs, fences run ahead of the clock
		d -= time.Millisecond
	}
	slices.SortFunc(list, func(a, b taking) int { return int(a.us - b.us) })
	sum, from := 0, 0
	for _, x := range list {
		for sum += x.n; x.us-list[from].us > d.Microseconds(); from++ {
			sum -= list[from].n
		}
		if sum > limit {
			w.Errorf("%d permits of %d in a window of %v", sum, limit, time.Duration(x.us-list[from].us)*time.Microsecond)
		}
	}
}

func windowNeverExceeded(w *World) {
	const limit, d = 7, heartbeatInterval / 4
	for _, change := range []func(*semaphore.Options){inWindow(d), bothLimitsOf(d, 7)} {
		var mu sync.Mutex
		var list []taking
		most := 0
		w.contend(3, 4, 6, limit, change, func(lease *lockkeeper.Lease, n int) {
			w.release(lease)
			mu.Lock()
			defer mu.Unlock()
			list = append(list, taking{int64(lease.Fence()), n})
			most += n
		})
		w.checkWindows(list, d, limit)
		// No permits are wasted: large requests leave gaps, but never of half a window's permits.
		first, last := list[0].us, list[len(list)-1].us
		if took := time.Duration(last-first) * time.Microsecond; !w.Real && took > 2*d*time.Duration(most)/limit {
			w.Errorf("%d permits at %d per %v took %v", most, limit, d, took)
		}
		w.must(w.admin.Del(w.ctx(), w.P.Key("x"), "{lock:x}:semaphore:meta").Err())
	}
}

func windowAdmitsInOrder(w *World) {
	window := per
	if w.Real {
		window *= 3 // all wait in the first
	}
	s := w.Process().sem(2, inWindow(window))
	at := func(l *lockkeeper.Lease) int64 { return int64(l.Fence()) }
	first := at(w.mustAcquire(permits(s, 1)))
	time.Sleep(window / 4)
	second := at(w.mustAcquire(permits(s, 1)))
	// The third gets those of the first when they return, the fourth those of the second and third, the others one
	// window later.
	var waits []chan result
	for i, n := range []int{1, 2, 1, 1} {
		waits = append(waits, w.acquireAsync(w.ctx(), int64(i+1), permits(w.Process(slowHeartbeats).sem(2, inWindow(window)), n)))
	}
	list := []taking{{first, 1}, {second, 1}}
	var late []time.Duration
	due := first
	for i, n := range []int{1, 2, 1, 1} {
		r := w.await(waits[i], 2*window)
		w.must(r.err)
		us := at(r.lease)
		list = append(list, taking{us, n})
		if i < 3 {
			late = append(late, time.Duration(us-due)*time.Microsecond-window)
			due = us
		}
	}
	w.checkWindows(list, window, 2)
	slices.Sort(late)
	if worst := late[len(late)-1]; !w.Real && worst > 2*time.Millisecond || late[0] > 50*time.Millisecond {
		w.Errorf("waiting for returned permits for %v", late)
	}
	if late[0] <= 0 && w.Real {
		w.Errorf("admitted %v before its permit returned", -late[0])
	}
	w.checkAllKeysExpire()
}

// windowWaitCommands checks that a returned permit costs its waiter one request, however many wait.
func windowWaitCommands(w *World) {
	counts := map[int]int{}
	for _, n := range []int{2, 200} {
		const keepers, turns, d = 5, 40, 20 * time.Millisecond
		var ps []*Process
		got := make(chan struct{}, 1000)
		ctx, cancel := context.WithCancel(w.ctx())
		w.Cleanup(cancel)
		for range keepers {
			ps = append(ps, w.Process(slowHeartbeats))
		}
		var wg sync.WaitGroup
		for i := range n {
			s := ps[i%keepers].sem(1, inWindow(d))
			wg.Go(func() {
				for {
					if _, err := s.Acquire(ctx, 1); err != nil {
						return
					}
					got <- struct{}{}
				}
			})
		}
		w.eventually("all to wait", func() bool {
			k, err := w.admin.ZCard(w.ctx(), w.queueKey("x")).Result()
			return err == nil && k >= int64(n-1)
		})
		for range 2 * keepers { // their first requests are over
			<-got
		}
		for _, p := range ps {
			p.Net.ResetCount()
		}
		for len(got) > 0 {
			<-got
		}
		for range turns {
			<-got
		}
		for _, p := range ps {
			counts[n] += p.Net.Scripts()
		}
		counts[n] = counts[n] * 100 / turns
		cancel()
		wg.Wait()
		w.awaitWaiters("x", 0)
	}
	w.Logf("commands per 100 permits with 2 and 200 waiters: %v", counts)
	if counts[2] > 400 || counts[200] > 400 {
		w.Errorf("commands per 100 permits with 2 and 200 waiters: %v", counts)
	}
}

func refusedImmediately(w *World) {
	for _, change := range []func(*semaphore.Options){inWindow(per), bothLimitsOf(per, 9)} {
		p := w.Process()
		s := p.sem(3, change)
		began := time.Now()
		w.release(w.mustAcquire(permits(s, 2)))
		took := time.Now()
		time.Sleep(per / 4)
		asked := time.Now()
		rate := w.wantLimitedError(w.refused(s, 2))
		if rate.RetryAfter > per || !w.Real && rate.RetryAt != took.Add(per+time.Millisecond) {
			w.Errorf("RetryAfter is %v, %v after the permits were taken", rate.RetryAfter, rate.RetryAt.Sub(took))
		}
		if rate.RetryAt.Before(began.Add(per)) || rate.RetryAt.Before(asked.Add(rate.RetryAfter)) {
			w.Errorf("RetryAt is %v after the permits were taken", rate.RetryAt.Sub(began))
		}

		// A wait that cannot succeed before its deadline is not begun.
		start := time.Now()
		before := 10 * time.Millisecond
		if w.Real { // the reply can be late by this much
			before = per / 4
		}
		ctx, cancel := context.WithDeadline(w.ctx(), rate.RetryAt.Add(-before))
		p.Net.ResetCount()
		_, err := s.Acquire(ctx, 2)
		cancel()
		w.checkError(err, lockkeeper.ErrNotAcquired)
		early := w.wantLimitedError(err)
		if d := early.RetryAt.Sub(rate.RetryAt); !w.Real && d != 0 || d < -per/4 { // the first reply can be late
			w.Errorf("RetryAt was %v, and %v later", rate.RetryAt, d)
		}
		if d := time.Since(start); d > per/2 {
			w.Errorf("the refusal took %v", d)
		}
		w.awaitWaiters("x", 0)
		w.available(s, 1)
		late, cancel2 := context.WithDeadline(w.ctx(), rate.RetryAt.Add(10*time.Second))
		waits := w.acquireAsync(late, 1, permits(w.Process().sem(3, change), 2))

		// Waiters come first, and their permits have to return as well.
		behind := w.wantLimitedError(w.refused(s, 2))
		if !w.Real && behind.RetryAt != rate.RetryAt.Add(per+time.Millisecond) {
			w.Errorf("behind another RetryAt is %v, but the other is granted at %v", behind.RetryAt, rate.RetryAt)
		}
		if !w.Real {
			time.Sleep(time.Until(rate.RetryAt.Add(-time.Millisecond)))
			w.expectNotGranted(waits)
		}
		r := w.await(waits, per)
		cancel2()
		w.must(r.err)
		if late := r.at.Sub(rate.RetryAt); !w.Real && (late < 0 || late > 2*time.Millisecond) {
			w.Errorf("admitted %v after RetryAt", late)
		}
		w.release(r.lease)

		// A caller that retries at that time is served if nobody else asks.
		again := w.wantLimitedError(w.refused(s, 3))
		time.Sleep(time.Until(again.RetryAt.Add(-time.Millisecond)))
		if !w.Real {
			w.refused(s, 3)
		}
		time.Sleep(time.Until(again.RetryAt))
		lease, err := s.TryAcquire(w.ctx(), 3)
		w.must(err)
		w.release(lease)
		w.must(w.admin.Del(w.ctx(), w.P.Key("x"), "{lock:x}:semaphore:meta").Err())
	}
}

func releaseKeepsWindowPermits(w *World) {
	s := w.Process().sem(3, inWindow(per))
	lease := w.mustAcquire(permits(s, 2))
	w.checkAllKeysExpire()
	w.release(lease)
	w.release(lease)
	w.available(s, 1)
	w.wantLimitedError(w.refused(s, 2))
	w.eventually("the permits to return", func() bool {
		n, err := s.Available(w.ctx())
		return err == nil && n == 3
	})
	if d := time.Since(w.grantTime(lease)); d <= per && !w.Real {
		w.Errorf("they were back after %v", d)
	}
	w.checkClean()
}

// grantTime returns when a lease was granted by the server's clock.
func (w *World) grantTime(l *lockkeeper.Lease) time.Time { return time.UnixMicro(int64(l.Fence())) }

// cancelAtPermitReturn checks that a waiter that is cancelled when its permit returns leaves it to others.
func cancelAtPermitReturn(w *World) {
	d, turns := 50*time.Millisecond, 20
	if w.Real { // long enough that the next one asks before the permit has returned
		d, turns = 400*time.Millisecond, 5
	}
	p := w.Process()
	probe := w.Process().sem(1, inWindow(d))
	for i := range turns {
		s := p.sem(1, inWindow(d))
		lease, err := probe.Acquire(w.ctx(), 1)
		w.must(err)
		ctx, cancel := context.WithCancel(w.ctx())
		waits := w.acquireAsync(ctx, 1, permits(s, 1))
		offset := time.Duration(i%5-2) * 500 * time.Microsecond
		if !w.Real {
			time.Sleep(time.Until(w.grantTime(lease).Add(d + 2*time.Millisecond + offset)))
		} else {
			time.Sleep(time.Until(w.grantTime(lease).Add(d + 5*offset)))
		}
		cancel()
		if r := w.await(waits, 0); r.err != nil {
			w.checkError(r.err, lockkeeper.ErrNotAcquired, context.Canceled)
			w.eventually("the permit to be there in time", func() bool {
				n, err := probe.Available(w.ctx())
				return err == nil && n == 1
			})
			if since := time.Since(w.grantTime(lease)); !w.Real && since > d+10*time.Millisecond {
				w.Errorf("the permit of a wait that was cancelled was away until %v after the one before", since)
			}
		}
		w.awaitWaiters("x", 0)
	}
	w.eventually("nothing left but tombstones", func() bool {
		n, err := probe.Available(w.ctx())
		return err == nil && n == 1
	})
	w.checkOnlyTombstones()
}

func bothLimits(w *World) {
	const limit, atOnce = 5, 2
	change := bothLimitsOf(3*per, atOnce)
	s := w.Process().sem(limit, change)
	start := time.Now()
	one, two := w.mustAcquire(permits(s, 1)), w.mustAcquire(permits(s, 1))
	if err := w.refused(s, 1); errors.As(err, new(*semaphore.RateError)) {
		w.Errorf("nothing has to return by the clock: %v", err)
	}
	holds := func(held, spent int64) {
		w.Helper()
		list, err := w.admin.ZMScore(w.ctx(), w.P.Key("x"), "used", "spent").Result()
		w.must(err)
		if int64(-list[0]) != held || int64(-list[1]) != spent {
			w.Errorf("%v held, %v away, want %d and %d", -list[0], -list[1], held, spent)
		}
	}
	holds(2, 2)
	waits := w.acquireAsync(w.ctx(), 1, permits(w.Process().sem(limit, change), 2))
	holds(2, 2) // waiters have taken nothing
	w.available(s, 0)
	w.release(one)
	holds(1, 2)
	w.expectNotGranted(waits)
	w.release(two)
	three := w.expectGranted(waits)
	holds(2, 4)
	w.available(s, 0)
	w.release(three)
	holds(0, 4)
	w.available(s, 1)

	// Now two wait for the clock, and hold nothing meanwhile.
	rate := w.wantLimitedError(w.refused(s, 2))
	if rate.RetryAt.Before(start.Add(3 * per)) {
		w.Errorf("RetryAt is %v after the first permit was taken", rate.RetryAt.Sub(start))
	}
	waits = w.acquireAsync(w.ctx(), 1, permits(w.Process().sem(limit, change), 2))
	holds(0, 4)
	r := w.await(waits, 3*per+2*time.Millisecond)
	w.must(r.err)
	if d := w.grantTime(r.lease).Sub(w.grantTime(one)); d <= 3*per-time.Millisecond {
		w.Errorf("admitted after %v", d)
	}
	time.Sleep(2 * ttl) // it is renewed, independently of the window
	w.must(r.lease.Err())
	w.available(s, 0)
	w.release(r.lease)
	w.checkAllKeysExpire()
}

// lostWakeupLosesNoPermit loses the message to the last of five waiters.
func lostWakeupLosesNoPermit(w *World) {
	const limit = 5
	p, unsubscribed := w.Process(), w.Process()
	s := p.sem(limit, inWindow(per))
	w.mustAcquire(permits(s, limit))
	var waits []chan result
	for i := range limit {
		by := p
		if i == limit-1 {
			by = unsubscribed
		}
		waits = append(waits, w.acquireAsync(w.ctx(), int64(i+1), permits(by.sem(limit, inWindow(per)), 1)))
	}
	unsubscribed.Net.BlackholeSubscriptions()
	first := w.await(waits[0], 2*per)
	w.must(first.err)
	r := w.await(waits[limit-1], heartbeatInterval+50*time.Millisecond)
	w.must(r.err)
	if d := w.grantTime(r.lease).Sub(w.grantTime(first.lease)); d > 50*time.Millisecond {
		w.Errorf("the waiter without the message was granted its permit %v after the first", d)
	}
	if late := r.at.Sub(first.at); !w.Real && late > heartbeatInterval+50*time.Millisecond {
		w.Errorf("the waiter without the message learned of its permit after %v", late)
	}
	holders, err := s.Holders(w.ctx())
	w.must(err)
	if !w.Real && len(holders) != limit {
		w.Errorf("%d receipts for %d requests", len(holders), limit)
	}
	if n := w.spent(); n > limit || !w.Real && n != limit {
		w.Errorf("%d permits are away, want %d", n, limit)
	}
}

// spent returns the number of permits that are to return, including returned ones that are still stored.
func (w *World) spent() int {
	w.Helper()
	list, err := w.admin.ZMScore(w.ctx(), w.P.Key("x"), "spent").Result()
	w.must(err)
	return int(-list[0])
}

func lostReplyTakesPermitsOnce(w *World) {
	const d = time.Minute
	p := w.Process()
	s := p.sem(100, inWindow(d))
	w.mustAcquire(permits(s, 1)) // load the scripts
	want := 1
	for _, fault := range []faultnet.Fault{faultnet.CutReply, faultnet.SwallowReply, faultnet.LoseRequest, faultnet.CutReply | faultnet.Copy} {
		for _, f := range []func(context.Context, int) (*lockkeeper.Lease, error){s.Acquire, s.TryAcquire} {
			p.Net.Break("evalsha", 1, fault)
			lease, err := f(w.ctx(), 3)
			w.must(err)
			want += 3
			if got := w.spent(); got != want {
				w.Errorf("%d permits are away, want %d", got, want)
			}
			w.release(lease)
			w.must(p.Net.Replay())
			if got := w.spent(); got != want {
				w.Errorf("after a late copy %d permits are away, want %d", got, want)
			}
		}
	}
	// A request whose caller has gone before the reply returns its permits.
	ctx, cancel := context.WithTimeout(w.ctx(), heartbeatInterval)
	defer cancel()
	p.Net.Break("evalsha", 1, faultnet.SwallowReply|faultnet.Copy)
	_, err := s.Acquire(ctx, 3)
	w.checkError(err, context.DeadlineExceeded, lockkeeper.ErrUnavailable)
	w.eventually("the permits to be returned", func() bool { return w.spent() == want })
	w.must(p.Net.Replay())
	if got := w.spent(); got != want {
		w.Errorf("after a late copy of a request that was given up %d permits are away, want %d", got, want)
	}
	w.available(s, 100-want)
	w.checkAllKeysExpire()
}

// windowClockSetBack checks that permits taken an hour ahead of the clock return a window after the next request.
func windowClockSetBack(w *World) {
	if w.Real {
		return // a real server uses the clock of the machine
	}
	s := w.Process().sem(2, inWindow(per))
	w.mustAcquire(permits(s, 2))
	time.Sleep(per / 2)
	defer w.mini.SetTime(time.Time{})
	stop := w.shiftClock(-time.Hour)
	defer stop()
	waits := w.acquireAsync(w.ctx(), 1, permits(w.Process().sem(2, inWindow(per)), 1))
	start := time.Now()
	w.wantLimitedError(w.refused(s, 1))
	w.available(s, 0)
	r := w.await(waits, 2*per)
	w.must(r.err)
	if d := r.at.Sub(start); d < per/2 || d > per+heartbeatInterval {
		w.Errorf("permits were away for %v after the clock was set back, the window is of %v", d, per)
	}
	w.available(s, 1)
	w.checkAllKeysExpire()
}

// permitsAfterDataLoss checks that only the server knows permits that return by the clock. If it loses its data, or
// its clock jumps ahead, a window may have twice the limit, which cannot be detected.
func permitsAfterDataLoss(w *World) {
	s := w.Process().sem(2, inWindow(time.Minute))
	again := func(what string) {
		w.Helper()
		if _, err := s.TryAcquire(w.ctx(), 2); err != nil {
			w.Errorf("%s: %v", what, err)
		}
		w.wantLimitedError(w.refused(s, 1))
	}
	again("at first")
	w.must(w.admin.FlushDB(w.ctx()).Err())
	again("after the data was lost")
	if !w.Real {
		defer w.mini.SetTime(time.Time{})
		defer w.shiftClock(time.Hour)()
		again("after the clock has jumped")
	}
	w.must(w.admin.FlushDB(w.ctx()).Err())
}

func receiptHoldsNothing(w *World) {
	var lost atomic.Int32
	p := w.Process(func(o *lockkeeper.Options) { o.Hooks.Lost = func(lockkeeper.Event) { lost.Add(1) } })
	s := p.sem(2, inWindow(per))
	lease := w.mustAcquire(permits(s, 1))
	other := w.mustAcquire(permits(s, 1))
	waited := w.mustAcquire(permits(s, 1))
	if other.Fence() <= lease.Fence() || waited.Fence() <= other.Fence() {
		w.Errorf("fences %d, %d, %d", lease.Fence(), other.Fence(), waited.Fence())
	}
	w.checkError(lease.Extend(w.ctx(), ttl), lockkeeper.ErrInvalid)
	_, err := s.Adopt(w.ctx(), lease.Token())
	w.checkError(err, lockkeeper.ErrInvalid)
	ctx := lease.Context(w.ctx())
	p.Net.ResetCount()
	time.Sleep(2 * per) // and long after its permit has returned
	if n := p.Net.Scripts(); n != 0 {
		w.Errorf("%d scripts for receipts", n)
	}
	for _, l := range []*lockkeeper.Lease{lease, waited} {
		select {
		case <-l.Done():
			w.Errorf("a receipt is over: %v", l.Err())
		default:
		}
		if !l.Deadline().IsZero() || l.Err() != nil {
			w.Errorf("deadline %v, %v", l.Deadline(), l.Err())
		}
	}
	w.must(ctx.Err())
	w.release(lease)
	w.checkError(lease.Err(), lockkeeper.ErrReleased)
	if !errors.Is(context.Cause(ctx), lockkeeper.ErrReleased) {
		w.Errorf("cause %v", context.Cause(ctx))
	}
	w.must(s.Do(w.ctx(), 2, func(ctx context.Context, fence uint64) error {
		if fence <= waited.Fence() {
			w.Errorf("fence %d after %d", fence, waited.Fence())
		}
		return ctx.Err()
	}))
	if lost.Load() != 0 {
		w.Errorf("%d receipts were called lost", lost.Load())
	}
	w.checkClean()
}

func closeDuringWindow(w *World) {
	p, q := w.Process(), w.Process()
	s := q.sem(3, inWindow(time.Minute))
	w.mustAcquire(permits(s, 1))
	receipt := w.mustAcquire(permits(p.sem(3, inWindow(time.Minute)), 1))
	var waits []chan result
	for i := range 5 {
		waits = append(waits, w.acquireAsync(w.ctx(), int64(i+1), permits(p.sem(3, inWindow(time.Minute)), 2)))
	}
	start := time.Now()
	w.must(p.Close())
	if d := time.Since(start); d > 3*time.Second {
		w.Errorf("Close took %v", d)
	}
	for _, ch := range waits {
		w.checkError(w.await(ch, 0).err, lockkeeper.ErrClosed)
	}
	w.awaitWaiters("x", 0)
	w.available(s, 1) // what was taken is still to return, what was waited for is not
	w.release(receipt)
	w.available(s, 1)
	closed := p.sem(3, inWindow(time.Minute))
	_, err := closed.Acquire(w.ctx(), 1)
	w.checkError(err, lockkeeper.ErrClosed)
	_, err = closed.Available(w.ctx())
	w.checkError(err, lockkeeper.ErrClosed)
	w.checkError(closed.SetLimit(w.ctx(), 1), lockkeeper.ErrClosed)
	w.must(p.RDB.Ping(w.ctx()).Err())
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

	// With Per it is those whose permits are away.
	s = p.sem(5, inWindow(time.Minute))
	receipt := w.mustAcquire(permits(s, 3))
	w.release(receipt)
	list, err = s.Holders(w.ctx())
	w.must(err)
	if len(list) != 1 || list[0].Permits != 3 || list[0].Token != receipt.Token() || list[0].Fence != receipt.Fence() || list[0].ExpiresIn <= 0 || list[0].ExpiresIn > time.Minute+time.Millisecond {
		w.Errorf("holders %+v", list)
	}
	w.available(s, 2)
}

// metadataOutlastsWindow checks that the limit in force is kept until all permits have returned.
func metadataOutlastsWindow(w *World) {
	const d = 24 * time.Hour // Idle is an hour
	w.mustAcquire(permits(w.Process().sem(2, inWindow(d)), 1))
	left, err := w.admin.PTTL(w.ctx(), w.metaKey("x")).Result()
	w.must(err)
	if left < d {
		w.Errorf("the metadata expires in %v, and the permit returns in %v", left, d)
	}
	w.must(w.admin.FlushDB(w.ctx()).Err())
}
