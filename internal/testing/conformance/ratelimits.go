package conformance

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// RateLimits are the cases of package ratelimit.
var RateLimits = append([]Case{
	{Name: "20_ended_context_sends_nothing_of_limits", Test: endedContextForLimits},
	{Name: "31_allow_does_not_jump_queue", Test: allowDoesNotJump},
	{Name: "50_window_never_exceeds_limit", Test: windowNeverExceeded},
	{Name: "50_window_admits_waiters_in_order", Test: windowAdmitsInOrder},
	{Name: "50_waiting_for_window_takes_few_commands", Test: windowWaitCommands},
	{Name: "50_permits_return_by_clock_alone", Test: permitsReturnByClockAlone},
	{Name: "50_wait_cancelled_at_permit_return_takes_nothing", Embedded: true, Test: cancelAtPermitReturn},
	{Name: "50_both_limits_in_one_request", Test: bothLimits},
	{Name: "50_released_lease_keeps_key_for_window", Test: keyAfterRelease},
	{Name: "server_clock_anywhere_for_windows", Embedded: true, Test: anyServerClock(windowRefills)},
	{Name: "50_lost_reply_takes_permits_once", Test: lostReplyTakesPermitsOnce},
	{Name: "50_clock_set_back_does_not_prolong_window", Embedded: true, Test: windowClockSetBack},
	{Name: "50_data_loss_frees_permits", Test: permitsAfterDataLoss},
	{Name: "50_nothing_is_held_without_a_lease", Test: nothingHeldWithoutLease},
	{Name: "50_result_says_what_remains", Test: resultSaysWhatRemains},
	{Name: "48_larger_limit_notifies_head", Test: largerLimitNotifiesHead},
	{Name: "48_set_limit_of_other_kind", Test: setLimitOfOtherKind},
	{Name: "50_unused_permits_notify_head", Test: unusedPermitsNotifyHead},
	{Name: "50_dead_waiters_are_ignored", Test: deadWaitersIgnored},
	{Name: "50_submillisecond_window_rounded_up", Embedded: true, Test: submillisecondWindow},
	{Name: "54_close_during_window", Test: closeDuringWindow},
	{Name: "50_wait_past_deadline_refused_immediately", Embedded: true, Test: refusedImmediately},
}, limiterCases...)

// taking is what was granted, and when, by the server's clock.
type taking struct {
	us int64
	n  int
}

// checkWindows checks that no window of a length holds more than the limit. A fence is the server's µs, and runs ahead of it where many
// are granted in one µs: on a real server by one script, so that it runs ahead by less than the limit.
func (w *World) checkWindows(list []taking, d time.Duration, limit int) {
	w.Helper()
	ahead := time.Duration(limit-1) * time.Microsecond
	if !w.Real {
		ahead = time.Millisecond
	}
	d -= ahead
	slices.SortFunc(list, func(a, b taking) int { return cmp.Compare(a.us, b.us) })
	sum, from := 0, 0
	for _, x := range list {
		for sum += x.n; x.us-list[from].us > d.Microseconds(); from++ {
			sum -= list[from].n
		}
		check.That(w, sum <= limit, "%d permits of %d in a window of %v", sum, limit, time.Duration(x.us-list[from].us)*time.Microsecond)
	}
}

func windowNeverExceeded(w *World) {
	const limit, d = 7, heartbeatInterval / 4
	rounds := 6
	if w.Real {
		rounds = 2 // each takes seconds
	}
	for _, maxConcurrent := range []int{0, 7} {
		var mu sync.Mutex
		var list []taking
		most := 0
		limiterOf := func(p *Process) limiter { return p.limiter(limit, d, maxConcurrent) }
		w.contend(3, 4, rounds, limit, limiterOf, func(g grant, n int) {
			w.giveBack(g)
			mu.Lock()
			defer mu.Unlock()
			list = append(list, taking{int64(g.fence), n})
			most += n
		})
		w.checkWindows(list, d, limit)
		// And nothing is wasted: heavy ones leave gaps, but never of half a window's permits.
		first, last := list[0].us, list[len(list)-1].us
		took := time.Duration(last-first) * time.Microsecond
		check.That(w, w.Real || took <= 2*d*time.Duration(most)/limit, "%d permits at %d per %v took %v", most, limit, d, took)
		w.forget()
	}
}

// window returns d, and on a real server a window that is so long that a busy machine takes some calls within it.
func (w *World) window(d time.Duration) time.Duration {
	if w.Real {
		return 3 * d
	}
	return d
}

func windowAdmitsInOrder(w *World) {
	window := w.window(heartbeatInterval) // all are queued in the first
	s := w.Process().limiter(2, window, 0)
	at := func(g grant) int64 { return int64(g.fence) }
	first := at(w.mustTake(s, 1))
	time.Sleep(window / 4)
	second := at(w.mustTake(s, 1))
	// The third comes when the first returns, the fourth takes the second's and the third's, the others one window later.
	var waits []chan result
	for i, n := range []int{1, 2, 1, 1} {
		waits = append(waits, w.takeAsync(w.ctx(), int64(i+1), w.Process(slowHeartbeats).limiter(2, window, 0), n))
	}
	list := []taking{{first, 1}, {second, 1}}
	var late []time.Duration
	due := first
	for i, n := range []int{1, 2, 1, 1} {
		r := w.awaitGrant(waits[i], 2*window)
		us := at(r.grant)
		list = append(list, taking{us, n})
		if i < 3 {
			late = append(late, time.Duration(us-due)*time.Microsecond-window)
			due = us
		}
	}
	w.checkWindows(list, window, 2)
	slices.Sort(late)
	worst := late[len(late)-1]
	w.inTime(worst, -window, 2*time.Millisecond, "waiting after the permits had returned")
	check.That(w, late[0] <= 50*time.Millisecond && (late[0] > 0 || !w.Real), "admitted too late, or before the permit was back: %v", late)
	w.checkAllKeysExpire()
}

// windowWaitCommands: a returned permit costs its next user one request, however many wait.
func windowWaitCommands(w *World) {
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
			s := ps[i%keepers].limiter(1, d, 0)
			wg.Go(func() {
				for {
					if _, err := s.Acquire(ctx, 1); err != nil {
						return
					}
					got <- struct{}{}
				}
			})
		}
		w.eventually("all to be queued", func() bool {
			k, err := w.admin.ZCount(w.ctx(), w.queueKey("x"), "-inf", protocol.BehindWaiters).Result()
			return err == nil && k >= int64(n-1)
		})
		for range 2 * keepers { // their first requests have been answered
			<-got
		}
		scripts := scriptsOf(ps, func() {
			for range len(got) + turns {
				<-got
			}
		})
		check.That(w, scripts <= 4*turns, "with %d waiters %d scripts for %d permits", n, scripts, turns)
		cancel()
		wg.Wait()
		w.awaitWaiters("x", 0)
	}
}

// refusedImmediately checks in virtual time when a request that is refused may try again, and that a wait whose deadline is
// earlier is refused at once.
func refusedImmediately(w *World) {
	const window, ms = per, time.Millisecond
	for _, maxConcurrent := range []int{0, 9} {
		p := w.Process()
		s := p.limiter(3, window, maxConcurrent)
		w.giveBack(w.mustTake(s, 2))
		back := time.Now().Add(window + ms)
		retryAt := func(err error, want time.Time) {
			w.Helper()
			w.checkError(err, lockkeeper.ErrNotAcquired)
			got := w.wantLimitedError(err)
			check.That(w, got.RetryAt == want && got.RetryAfter == time.Until(want),
				"RetryAt is %v too late, RetryAfter %v", got.RetryAt.Sub(want), got.RetryAfter)
		}
		time.Sleep(window / 4)
		retryAt(errorOf(s.TryAcquire(w.ctx(), 2)), back)
		early, cancel := context.WithDeadline(w.ctx(), back.Add(-10*ms))
		defer cancel()
		start := time.Now()
		retryAt(errorOf(s.Acquire(early, 2)), back)
		check.That(w, time.Since(start) <= 0, "the refusal took %v", time.Since(start))
		w.awaitWaiters("x", 0)
		w.available(s, 1)

		// Queued requests come first, and what they will take has to return as well.
		late, cancel := context.WithDeadline(w.ctx(), back.Add(time.Minute))
		defer cancel()
		waits := w.takeAsync(late, 1, w.Process().limiter(3, window, maxConcurrent), 2)
		retryAt(errorOf(s.TryAcquire(w.ctx(), 2)), back.Add(window+ms))
		time.Sleep(time.Until(back.Add(-ms)))
		w.expectNotGranted(waits)
		r := w.awaitGrant(waits, window)
		check.That(w, r.at.Sub(back) >= 0 && r.at.Sub(back) <= 2*ms, "admitted %v after RetryAt", r.at.Sub(back))
		w.giveBack(r.grant)

		// A caller that retries at RetryAt is served if there is nobody else.
		again := w.wantLimitedError(w.limited(s, 3))
		time.Sleep(time.Until(again.RetryAt.Add(-ms)))
		w.limited(s, 3)
		time.Sleep(ms)
		g := must.Get(s.TryAcquire(w.ctx(), 3))(w)
		w.giveBack(g)
		w.forget()
	}
}

// permitsReturnByClockAlone: the end of the lease, if there is one, returns nothing to the window.
func permitsReturnByClockAlone(w *World) {
	window := w.window(heartbeatInterval)
	for _, maxConcurrent := range []int{0, 3} {
		s := w.Process().limiter(3, window, maxConcurrent)
		g := w.mustTake(s, 2)
		w.checkAllKeysExpire()
		w.giveBack(g)
		w.giveBack(g)
		w.available(s, 1)
		w.wantLimitedError(w.limited(s, 2))
		w.awaitAvailable(s, 3)
		d := time.Since(w.grantTime(g))
		check.That(w, d > window || w.Real, "they were back after %v", d)
		w.checkClean()
	}
}

// windowRefills takes all permits of a window one by one, is refused, waits for the next one, and has all again a window later.
func windowRefills(w *World) {
	window := w.window(heartbeatInterval)
	for _, maxConcurrent := range []int{0, 5} {
		s := w.Process().limiter(3, window, maxConcurrent)
		start := time.Now()
		var last grant
		for range 3 {
			g := must.Get(s.TryAcquire(w.ctx(), 1))(w)
			check.That(w, g.fence > last.fence, "the fence %d comes after %d", g.fence, last.fence)
			w.giveBack(g)
			last = g
		}
		limited := w.wantLimitedError(w.limited(s, 1))
		check.That(w, limited.RetryAfter <= window+10*time.Millisecond, "retry after %v", limited.RetryAfter)
		r := w.awaitGrant(w.takeAsync(w.ctx(), 1, w.Process().limiter(3, window, maxConcurrent), 1), window+10*time.Millisecond)
		w.inTime(r.at.Sub(start), window, window+10*time.Millisecond, "the first permit returned")
		check.That(w, r.fence > last.fence, "the fence %d comes after %d", r.fence, last.fence)
		w.giveBack(r.grant)
		w.awaitAvailable(s, 3)
		w.forget()
	}
}

// keyAfterRelease checks that the key is not kept for the ttl of a lease that was released: its permits return by the clock long before.
func keyAfterRelease(w *World) {
	p := w.Process()
	s := must.Get(ratelimit.NewConcurrent(p.Keeper, "x", 5, per, 5, &ratelimit.ConcurrentOptions{TTL: time.Hour}))(w)
	left := func() time.Duration { return w.admin.PTTL(w.ctx(), w.P.Key("x")).Val() }
	long, other := w.mustAcquire(s.Locker().Lock), w.mustAcquire(s.Locker().Lock)
	w.release(long)
	check.That(w, left() > time.Hour-time.Minute, "the key is kept for %v beside a lease", left())
	w.release(other)
	check.Between(w, left(), per-w.slack(), 2*per+time.Second, "the key is kept")
	w.available(s, 3)
}

// grantTime is when a request was granted by the server's clock.
func (w *World) grantTime(g grant) time.Time { return time.UnixMicro(int64(g.fence)) }

// cancelAtPermitReturn checks that a wait that is cancelled when its permit returns does not take it.
func cancelAtPermitReturn(w *World) {
	const d = 50 * time.Millisecond
	p := w.Process()
	probe := w.Process().limiter(1, d, 0)
	for i := range 20 {
		returns := w.grantTime(w.mustTake(probe, 1)).Add(d)
		ctx, cancel := context.WithCancel(w.ctx())
		waits := w.takeAsync(ctx, 1, p.limiter(1, d, 0), 1)
		time.Sleep(time.Until(returns.Add(2*time.Millisecond + time.Duration(i%5-2)*500*time.Microsecond)))
		cancel()
		if r := await(w, waits, 0); r.err != nil {
			w.checkError(r.err, lockkeeper.ErrNotAcquired, context.Canceled)
			w.awaitAvailable(probe, 1)
			w.inTime(time.Since(returns), 0, 10*time.Millisecond, "the permit of a wait that was cancelled was away")
		}
		w.awaitWaiters("x", 0)
	}
	w.awaitAvailable(probe, 1)
	w.checkOnlyTombstones()
}

func bothLimits(w *World) {
	const limit, atOnce = 5, 2
	s := w.Process().limiter(limit, 3*per, atOnce)
	w.checkError(errorOf(s.TryAcquire(w.ctx(), atOnce+1)), lockkeeper.ErrInvalid)
	start := time.Now()
	one, two := w.mustTake(s, 1), w.mustTake(s, 1)
	err := w.limited(s, 1)
	check.That(w, !errors.As(err, new(*ratelimit.LimitedError)), "nothing has to return by the clock: %v", err)
	holds := func(held, spent float64) {
		w.Helper()
		list := must.Get(w.admin.ZMScore(w.ctx(), w.P.Key("x"), "used", "spent").Result())(w)
		check.That(w, slices.Equal(list, []float64{-held, -spent}), "held and away %v, want %v and %v", list, -held, -spent)
	}
	holds(2, 2)
	waits := w.takeAsync(w.ctx(), 1, w.Process().limiter(limit, 3*per, atOnce), 2)
	holds(2, 2) // the waiter has taken nothing
	w.available(s, 0)
	w.giveBack(one)
	holds(1, 2)
	w.expectNotGranted(waits)
	w.giveBack(two)
	r := w.awaitGrant(waits, 0)
	three := r.grant
	holds(2, 4)
	w.available(s, 0)
	w.giveBack(three)
	holds(0, 4)
	w.available(s, 1)

	// Now it is the clock that two have to wait for, and they hold nothing meanwhile.
	rate := w.wantLimitedError(w.limited(s, 2))
	check.That(w, !rate.RetryAt.Before(start.Add(3*per)), "RetryAt is %v after the first permit was taken", rate.RetryAt.Sub(start))
	waits = w.takeAsync(w.ctx(), 1, w.Process().limiter(limit, 3*per, atOnce), 2)
	holds(0, 4)
	r = w.awaitGrant(waits, 3*per+2*time.Millisecond)
	d := w.grantTime(r.grant).Sub(w.grantTime(one))
	check.That(w, d > 3*per-time.Millisecond, "admitted after %v", d)
	time.Sleep(2 * ttl) // it is renewed, and the count of the clock is another matter
	w.must(r.grant.lease.Err())
	w.available(s, 0)
	w.giveBack(r.grant)
	w.checkAllKeysExpire()
}

// spent is how many permits are away at the server, or have returned and were not yet taken out.
func (w *World) spent() int {
	w.Helper()
	list := must.Get(w.admin.ZRangeWithScores(w.ctx(), w.P.Key("x"), 0, -1).Result())(w)
	counted, spent := false, 0
	for _, z := range list {
		switch z.Member {
		case "spent":
			spent = int(-z.Score)
			counted = true
		case "used":
			counted = true
		}
	}
	if !counted { // the key has nothing else
		return len(list)
	}
	return spent
}

func lostReplyTakesPermitsOnce(w *World) {
	const d = time.Minute
	p := w.Process()
	s := p.limiter(100, d, 0)
	w.mustTake(s, 1) // the scripts are known
	want := 1
	for _, fault := range []faultnet.Fault{faultnet.CutReply, faultnet.SwallowReply, faultnet.LoseRequest, faultnet.CutReply | faultnet.Copy} {
		for _, f := range []func(context.Context, int) (grant, error){s.Acquire, s.TryAcquire} {
			p.Net.Break("evalsha", 1, fault)
			lease := must.Get(f(w.ctx(), 3))(w)
			want += 3
			check.That(w, w.spent() == want, "%d permits are away, want %d", w.spent(), want)
			w.giveBack(lease)
			w.must(p.Net.Replay())
			check.That(w, w.spent() == want, "after a late copy %d permits are away, want %d", w.spent(), want)
		}
	}
	// One whose caller has gone before it was answered gives back what it took.
	ctx := must.Within(w, heartbeatInterval)
	p.Net.Break("evalsha", 1, faultnet.SwallowReply|faultnet.Copy)
	w.checkError(errorOf(s.Acquire(ctx, 3)), context.DeadlineExceeded, lockkeeper.ErrUnavailable)
	w.eventually("the permits to be given back", func() bool { return w.spent() == want })
	w.must(p.Net.Replay())
	check.That(w, w.spent() == want, "after a late copy of a request that was given up %d permits are away, want %d", w.spent(), want)
	w.available(s, 100-want)
	w.checkAllKeysExpire()
}

// windowClockSetBack: what was taken an hour ahead of the clock is away for a window from when somebody asks.
func windowClockSetBack(w *World) {
	s := w.Process().limiter(2, per, 0)
	w.mustTake(s, 2)
	time.Sleep(per / 2)
	defer w.mini.SetTime(time.Time{})
	stop := w.shiftClock(-time.Hour)
	defer stop()
	waits := w.takeAsync(w.ctx(), 1, w.Process().limiter(2, per, 0), 1)
	start := time.Now()
	w.wantLimitedError(w.limited(s, 1))
	w.available(s, 0)
	r := w.awaitGrant(waits, 2*per)
	w.inTime(r.at.Sub(start), per/2, per+heartbeatInterval, "permits were away after the clock was set back")
	w.available(s, 1)
	w.checkAllKeysExpire()
}

// permitsAfterDataLoss: permits that return by the clock are known to the server alone. If it loses its data, or its clock jumps
// ahead, a window may hold the limit twice, and no error reports it.
func permitsAfterDataLoss(w *World) {
	s := w.Process().limiter(2, time.Minute, 0)
	again := func(what string) {
		w.Helper()
		check.Is(w, check.ErrorOf(s.TryAcquire(w.ctx(), 2)), nil, "%s", what)
		w.wantLimitedError(w.limited(s, 1))
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

// nothingHeldWithoutLease: permits that return by the clock alone are not renewed, released or lost, and no call pretends
// that they were.
func nothingHeldWithoutLease(w *World) {
	var lost, released atomic.Int32
	p := w.Process(func(o *lockkeeper.Options) {
		o.Hooks.Lost = func(lockkeeper.Event) { lost.Add(1) }
		o.Hooks.Released = func(lockkeeper.Event) { released.Add(1) }
	})
	s := p.limiter(2, per, 0)
	one, two, waited := w.mustTake(s, 1), w.mustTake(s, 1), w.mustTake(s, 1)
	check.That(w, two.fence > one.fence && waited.fence > two.fence, "fences %d, %d, %d", one.fence, two.fence, waited.fence)
	holders := must.Get(s.Holders(w.ctx()))(w)
	w.checkError(errorOf(p.limiter(2, per, 2).leasing.Adopt(w.ctx(), holders[0].Token)), lockkeeper.ErrLost)
	p.Net.ResetCount()
	time.Sleep(2 * per) // and long after its permit has returned
	check.That(w, p.Net.Scripts() == 0, "%d scripts for permits that are not held", p.Net.Scripts())
	w.must(s.DoN(w.ctx(), 2, func(ctx context.Context, fence uint64) error {
		check.That(w, fence > waited.fence, "fence %d after %d", fence, waited.fence)
		return ctx.Err()
	}))
	check.That(w, lost.Load() == 0 && released.Load() == 0, "%d were called lost and %d released", lost.Load(), released.Load())
	w.checkClean()
}

// resultSaysWhatRemains: by the limit in force and the server's clock, and in the same step.
func resultSaysWhatRemains(w *World) {
	p, window := w.Process(), w.window(per)
	s := p.limiter(10, window, 0)
	is := func(n int, want ratelimit.Result) {
		w.Helper()
		got := must.Get(s.byClock.AllowN(w.ctx(), n))(w)
		check.That(w, (got.Fence > 0) == want.Allowed, "fence %d: %+v", got.Fence, got)
		got.Fence = 0
		if w.Real { // its clock moves
			got.RetryAfter, got.ResetAfter = want.RetryAfter, want.ResetAfter
		}
		check.That(w, got == want, "for %d permits %+v, want %+v", n, got, want)
	}
	const ms = time.Millisecond
	is(4, ratelimit.Result{Allowed: true, Limit: 10, Remaining: 6, ResetAfter: window + ms})
	p.Net.ResetCount() // the script is known
	time.Sleep(window / 4)
	is(7, ratelimit.Result{Limit: 10, Remaining: 6, RetryAfter: window*3/4 + ms, ResetAfter: window*3/4 + ms})
	is(6, ratelimit.Result{Allowed: true, Limit: 10, Remaining: 0, ResetAfter: window + ms})
	is(5, ratelimit.Result{Limit: 10, Remaining: 0, RetryAfter: window + ms, ResetAfter: window + ms})
	check.That(w, p.Net.Scripts() == 3, "%d scripts for 3 answers", p.Net.Scripts())
	w.must(s.SetLimit(w.ctx(), 12))
	is(2, ratelimit.Result{Allowed: true, Limit: 12, Remaining: 0, ResetAfter: window + ms})
	w.awaitAvailable(s, 12)
	is(1, ratelimit.Result{Allowed: true, Limit: 12, Remaining: 11, ResetAfter: window + ms})
	w.must(s.SetLimit(w.ctx(), 2))
	w.checkError(errorOf(s.byClock.AllowN(w.ctx(), 3)), ratelimit.ErrAboveLimit)
}

func closeDuringWindow(w *World) {
	p, q := w.Process(), w.Process()
	s := q.limiter(3, time.Minute, 0)
	w.mustTake(s, 1)
	w.mustTake(p.limiter(3, time.Minute, 0), 1)
	var waits []chan result
	for i := range 5 {
		waits = append(waits, w.takeAsync(w.ctx(), int64(i+1), p.limiter(3, time.Minute, 0), 2))
	}
	w.must(p.Close())
	for _, ch := range waits {
		w.checkError(await(w, ch, 0).err, lockkeeper.ErrClosed)
	}
	w.awaitWaiters("x", 0)
	w.available(s, 1) // what was taken is away, what was waited for is not
	closed := p.limiter(3, time.Minute, 0)
	w.checkError(errorOf(closed.Acquire(w.ctx(), 1)), lockkeeper.ErrClosed)
	w.checkError(errorOf(closed.Available(w.ctx())), lockkeeper.ErrClosed)
	w.checkError(closed.SetLimit(w.ctx(), 1), lockkeeper.ErrClosed)
	w.must(p.RDB.Ping(w.ctx()).Err())
}

// headNotifiedWhen: the head of the queue was sent the time at which its eight of ten permits will have returned. Half of them are
// taken late, and something makes that sooner, so that it has to be notified: no heartbeat is due.
func headNotifiedWhen(w *World, takeLate func(p *Process, s limiter), sooner func(s limiter)) {
	d := w.window(headWindow)
	p := w.Process(slowHeartbeats)
	s := p.limiter(10, d, 0)
	w.mustTake(s, 5)
	start := time.Now()
	time.Sleep(d / 4)
	takeLate(p, s)
	due := start.Add(d)
	waits := w.takeAsync(w.ctx(), 1, w.Process(slowHeartbeats).limiter(10, d, 0), 8)
	time.Sleep(time.Until(start.Add(d / 2)))
	sooner(s)
	r := w.awaitGrant(waits, time.Until(due)+2*time.Millisecond)
	check.That(w, w.Real || r.at.Sub(due) <= d/8, "it was served %v late", r.at.Sub(due))
	w.checkAllKeysExpire()
}

// headWindow is the window of headNotifiedWhen.
const headWindow = 2 * time.Second

// largerLimitNotifiesHead: set by somebody, or known to a caller.
func largerLimitNotifiesHead(w *World) {
	for _, sooner := range []func(limiter){
		func(s limiter) { w.must(s.SetLimit(w.ctx(), 13)) },
		func(limiter) { w.limited(w.Process(slowHeartbeats).limiter(13, w.window(headWindow), 0), 4) },
	} {
		headNotifiedWhen(w, func(_ *Process, s limiter) { w.mustTake(s, 5) }, sooner)
		w.forget()
	}
}

// unusedPermitsNotifyHead: permits that somebody took and never learned of are given back.
func unusedPermitsNotifyHead(w *World) {
	w.clientTimeout = time.Minute // the request is not repeated before it is cancelled
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	headNotifiedWhen(w, func(p *Process, s limiter) {
		p.Net.Break("evalsha", 1, faultnet.SwallowReply)
		go func() { _, _ = s.Acquire(ctx, 5) }()
		w.eventually("the permits to be taken", func() bool { return w.spent() == 10 })
	}, func(limiter) {
		cancel()
		w.eventually("the permits to be given back", func() bool { return w.spent() == 5 })
	})
}

// deadWaitersIgnored: those whose process has gone are nobody to wait for.
func deadWaitersIgnored(w *World) {
	const d = time.Minute
	s := w.Process().limiter(1, d, 0)
	w.mustTake(s, 1)
	dead := w.Process(slowHeartbeats)
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	for range 80 {
		go func() { _, _ = dead.limiter(1, d, 0).Acquire(ctx, 1) }()
	}
	w.awaitWaiters("x", 80)
	dead.Crash()
	time.Sleep(heartbeatInterval) // the server sees it
	after := w.wantLimitedError(w.limited(s, 1)).RetryAfter
	check.That(w, after <= d+time.Second, "retry after %v", after)
}

// setLimitOfOtherKind: who knows of another window and of a bound on concurrent calls sets the limit of the window that is in force, and
// nothing else.
func setLimitOfOtherKind(w *World) {
	w.mustTake(w.Process().limiter(10, time.Minute, 0), 1)
	w.must(w.Process().limiter(100, time.Second, 5).SetLimit(w.ctx(), 2))
	limits := must.Get(w.admin.HGet(w.ctx(), w.metaKey("x"), "limits").Result())(w)
	want := "0:10:60000 0:2:60000"
	check.That(w, limits == want, "limits %q, want %q", limits, want)
}

// submillisecondWindow: a window that is not a whole number of milliseconds is never shorter than what was asked for.
func submillisecondWindow(w *World) {
	s := w.Process().limiter(1, 10*time.Millisecond+time.Microsecond, 0)
	w.mustTake(s, 1)
	time.Sleep(11 * time.Millisecond)
	w.limited(s, 1)
	time.Sleep(time.Millisecond)
	w.mustTake(s, 1)
}

func endedContextForLimits(w *World) {
	p := w.Process()
	s := p.limiter(100, time.Minute, 0)
	ctx, cancel := context.WithCancelCause(w.ctx())
	cancel(errCause)
	p.Net.ResetCount()
	for _, err := range []error{
		errorOf(s.byClock.Allow(ctx)), s.byClock.Wait(ctx), s.byClock.Do(ctx, func(context.Context, uint64) error { return nil }),
		errorOf(s.Acquire(ctx, 1)), errorOf(s.Available(ctx)), s.SetLimit(ctx, 1),
	} {
		w.checkError(err, context.Canceled, errCause)
	}
	w.settle()
	check.That(w, p.Net.Scripts() == 0, "%d scripts were sent", p.Net.Scripts())
}

// allowDoesNotJump: a permit is left, but a waiter before needs it.
func allowDoesNotJump(w *World) {
	p, q := w.Process(), w.Process()
	s := p.limiter(2, time.Minute, 0)
	w.mustTake(s, 1)
	ctx, cancel := context.WithCancel(w.ctx())
	heavy := w.takeAsync(ctx, 1, q.limiter(2, time.Minute, 0), 2)
	r := must.Get(s.byClock.Allow(w.ctx()))(w)
	check.That(w, !r.Allowed && r.Remaining == 1 && r.Fence == 0, "while a request for two is queued: %+v", r)
	w.expectNotGranted(heavy)
	cancel()
	w.checkError(await(w, heavy, 0).err, context.Canceled, lockkeeper.ErrNotAcquired)
	w.awaitWaiters("x", 0)
	r = must.Get(s.byClock.Allow(w.ctx()))(w)
	check.That(w, r.Allowed && r.Remaining == 0, "after it: %+v", r)
}
