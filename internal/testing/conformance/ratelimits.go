package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/redis/go-redis/v9"
)

// RateLimits are the cases of package ratelimit.
var RateLimits = []Case{
	{Name: "12_script_flush_is_transparent_to_allow", Alone: true, Test: scriptFlushForLimits},
	{Name: "20_ended_context_sends_nothing_of_limits", Test: endedContextForLimits},
	{Name: "31_allow_does_not_jump_queue", Test: allowDoesNotJump},
	{Name: "44_invalid_permit_counts_rejected", Test: invalidLimitCounts},
	{Name: "48_latest_callers_limit_applies", Test: latestCallersWindowLimit},
	{Name: "50_window_never_exceeds_limit", Test: windowNeverExceeded},
	{Name: "50_window_admits_waiters_in_order", Test: windowAdmitsInOrder},
	{Name: "50_waiting_for_window_takes_few_commands", Test: windowWaitCommands},
	{Name: "50_wait_past_deadline_refused_immediately", Test: refusedImmediately},
	{Name: "50_permits_return_by_clock_alone", Test: permitsReturnByClockAlone},
	{Name: "50_wait_cancelled_at_permit_return_takes_nothing", Test: cancelAtPermitReturn},
	{Name: "50_both_limits_in_one_request", Test: bothLimits},
	{Name: "50_lost_wakeup_loses_no_permit", Test: lostWakeupLosesNoPermit},
	{Name: "50_lost_reply_takes_permits_once", Test: lostReplyTakesPermitsOnce},
	{Name: "50_clock_set_back_does_not_prolong_window", Test: windowClockSetBack},
	{Name: "50_data_loss_frees_permits", Test: permitsAfterDataLoss},
	{Name: "50_nothing_is_held_without_a_lease", Test: nothingHeldWithoutLease},
	{Name: "50_result_says_what_remains", Test: resultSaysWhatRemains},
	{Name: "48_raised_limit_notifies_head", Test: raisedLimitNotifiesHead},
	{Name: "48_callers_larger_limit_notifies_head", Test: callersLimitNotifiesHead},
	{Name: "48_set_limit_of_other_kind", Test: setLimitOfOtherKind},
	{Name: "50_unused_permits_notify_head", Test: unusedPermitsNotifyHead},
	{Name: "50_dead_waiters_are_ignored", Test: deadWaitersIgnored},
	{Name: "50_late_duplicates_take_nothing", Test: lateDuplicatesOfPermits},
	{Name: "50_submillisecond_window_rounded_up", Test: submillisecondWindow},
	{Name: "50_metadata_outlasts_window", Test: metadataOutlastsWindow},
	{Name: "54_close_during_window", Test: closeDuringWindow},
	{Name: "55_limit_key_of_other_type_is_untouched", Test: foreignKeyForLimits},
	{Name: "f35_limit_on_server_refusing_writes", Real: true, Alone: true, Test: writesRefusedForLimits},
	{Name: "61_permit_outage_is_not_contention", Alone: true, Test: outageForLimits},
	{Name: "inspect_rate_limit", Test: inspectRateLimit},
}

// limiter is a rate limiter under test, of either kind. Its Acquire and TryAcquire are the calls for whichever it is: a
// ConcurrentLimiter has a lease, and the permits of a Limiter are not held.
type limiter struct {
	limits
	byClock    *ratelimit.Limiter           // or else
	concurrent *ratelimit.ConcurrentLimiter // is set
	w          *World
}

// limits is what both kinds have in common.
type limits interface {
	Available(ctx context.Context) (int, error)
	DoN(ctx context.Context, n int, fn func(ctx context.Context, fence uint64) error) error
	Holders(ctx context.Context) ([]lockkeeper.Holder, error)
	SetLimit(ctx context.Context, limit int) error
	Waiters(ctx context.Context) ([]lockkeeper.Waiter, error)
}

// limiter returns the limiter of a process. With maxConcurrent 0 it is a Limiter.
func (p *Process) limiter(limit int, window time.Duration, maxConcurrent int) limiter {
	p.w.Helper()
	return p.limiterOf("x", limit, window, maxConcurrent)
}

func (p *Process) limiterOf(name string, limit int, window time.Duration, maxConcurrent int) limiter {
	p.w.Helper()
	if maxConcurrent > 0 {
		l, err := ratelimit.NewConcurrent(p.Keeper, name, limit, window, maxConcurrent, &ratelimit.ConcurrentOptions{TTL: ttl})
		p.w.must(err)
		return limiter{limits: l, concurrent: l, w: p.w}
	}
	l, err := ratelimit.New(p.Keeper, name, limit, window, nil)
	p.w.must(err)
	return limiter{limits: l, byClock: l, w: p.w}
}

// grant is what a request was granted: a fence, and a lease if there is one.
type grant struct {
	fence uint64
	lease *lockkeeper.Lease
}

func (g grant) Fence() uint64 { return g.fence }

func leased(lease *lockkeeper.Lease, err error) (grant, error) {
	return grant{lease.Fence(), lease}, err
}

// Acquire waits for n permits.
func (l limiter) Acquire(ctx context.Context, n int) (g grant, err error) {
	if l.concurrent != nil {
		return leased(l.concurrent.AcquireN(ctx, n))
	}
	err = l.byClock.DoN(ctx, n, func(_ context.Context, fence uint64) error {
		g.fence = fence
		return nil
	})
	return g, err
}

// notAllowed is a refusal by AllowN as an error.
type notAllowed struct{ ratelimit.LimitedError }

// Error implements error.
func (notAllowed) Error() string { return "not allowed" }

// Unwrap makes it match lockkeeper.ErrNotAcquired.
func (notAllowed) Unwrap() error { return lockkeeper.ErrNotAcquired }

// TryAcquire takes n permits or is refused.
func (l limiter) TryAcquire(ctx context.Context, n int) (grant, error) {
	if l.concurrent != nil {
		return leased(l.concurrent.TryAcquireN(ctx, n))
	}
	r, err := l.byClock.AllowN(ctx, n)
	if err != nil {
		return grant{}, err
	}
	if r.Allowed != (r.Fence > 0) || r.Limit < n || r.Remaining < 0 || r.Remaining > r.Limit || r.RetryAfter < 0 ||
		r.Allowed && (r.RetryAfter != 0 || r.ResetAfter <= 0 || r.Remaining > r.Limit-n) {
		l.w.Errorf("for %d permits: %+v", n, r)
	}
	if !r.Allowed {
		return grant{}, &notAllowed{ratelimit.LimitedError{RetryAfter: r.RetryAfter, RetryAt: time.Now().Add(r.RetryAfter)}}
	}
	return grant{fence: r.Fence}, nil
}

// mustTake takes n permits.
func (w *World) mustTake(l limiter, n int) grant {
	w.Helper()
	g, err := l.Acquire(w.ctx(), n)
	w.must(err)
	return g
}

// giveBack releases the lease, if there is one.
func (w *World) giveBack(g grant) {
	w.Helper()
	if g.lease != nil {
		w.release(g.lease)
	}
}

// taken is how a call for permits ended.
type taken struct {
	grant grant
	err   error
	at    time.Time
}

// takeAsync asks for n permits; it returns when k requests are queued.
func (w *World) takeAsync(ctx context.Context, k int64, l limiter, n int) chan taken {
	w.Helper()
	ch := make(chan taken, 1)
	go func() {
		g, err := l.Acquire(ctx, n)
		ch <- taken{g, err, time.Now()}
	}()
	w.awaitWaiters("x", k)
	return ch
}

func (w *World) awaitTake(ch chan taken, within time.Duration) taken {
	w.Helper()
	select {
	case r := <-ch:
		return r
	case <-time.After(within + w.slack()):
		w.Fatalf("no result within %v", within)
		return taken{}
	}
}

// notTaken checks that the call still waits.
func (w *World) notTaken(ch chan taken) {
	w.Helper()
	select {
	case r := <-ch:
		w.Fatalf("granted %+v, %v", r.grant, r.err)
	default:
	}
}

// limited checks that n permits are refused at present.
func (w *World) limited(l limiter, n int) error {
	w.Helper()
	_, err := l.TryAcquire(w.ctx(), n)
	w.checkError(err, lockkeeper.ErrNotAcquired)
	return err
}

// wantLimitedError checks that an error says when to try again.
func (w *World) wantLimitedError(err error) *ratelimit.LimitedError {
	w.Helper()
	limited := new(ratelimit.LimitedError)
	if refusal := (*notAllowed)(nil); errors.As(err, &refusal) {
		limited = &refusal.LimitedError
	} else if !errors.As(err, &limited) {
		w.Fatalf("the error does not say when to try again: %v", err)
	}
	if limited.RetryAfter <= 0 {
		w.Fatalf("retry after %v", limited.RetryAfter)
	}
	return limited
}

// taking is what was granted, and when, by the server's clock.
type taking struct {
	us int64
	n  int
}

// checkWindows checks that no window of a length holds more than the limit. A fence is the server's µs.
func (w *World) checkWindows(list []taking, d time.Duration, limit int) {
	w.Helper()
	if !w.Real { // where many things happen in one µs, fences run ahead of the clock
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
	for _, maxConcurrent := range []int{0, 7} {
		var mu sync.Mutex
		var list []taking
		most := 0
		w.contendForLimit(3, 4, 6, limit, d, maxConcurrent, func(g grant, n int) {
			w.giveBack(g)
			mu.Lock()
			defer mu.Unlock()
			list = append(list, taking{int64(g.fence), n})
			most += n
		})
		w.checkWindows(list, d, limit)
		// And nothing is wasted: heavy ones leave gaps, but never of half a window's permits.
		first, last := list[0].us, list[len(list)-1].us
		if took := time.Duration(last-first) * time.Microsecond; !w.Real && took > 2*d*time.Duration(most)/limit {
			w.Errorf("%d permits at %d per %v took %v", most, limit, d, took)
		}
		w.must(w.admin.Del(w.ctx(), w.P.Key("x"), "{lock:x}:ratelimit:meta").Err())
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
	window := w.window(per) // all are queued in the first
	s := w.Process().limiter(2, window, 0)
	at := func(g grant) int64 { return int64(g.fence) }
	first := at(w.mustTake(s, 1))
	time.Sleep(window / 4)
	second := at(w.mustTake(s, 1))
	// The third comes when the first returns, the fourth takes the second's and the third's, the others one window later.
	var waits []chan taken
	for i, n := range []int{1, 2, 1, 1} {
		waits = append(waits, w.takeAsync(w.ctx(), int64(i+1), w.Process(slowHeartbeats).limiter(2, window, 0), n))
	}
	list := []taking{{first, 1}, {second, 1}}
	var late []time.Duration
	due := first
	for i, n := range []int{1, 2, 1, 1} {
		r := w.awaitTake(waits[i], 2*window)
		w.must(r.err)
		us := at(r.grant)
		list = append(list, taking{us, n})
		if i < 3 {
			late = append(late, time.Duration(us-due)*time.Microsecond-window)
			due = us
		}
	}
	w.checkWindows(list, window, 2)
	slices.Sort(late)
	if worst := late[len(late)-1]; !w.Real && worst > 2*time.Millisecond || late[0] > 50*time.Millisecond {
		w.Errorf("queued after the permits had returned, for %v", late)
	}
	if late[0] <= 0 && w.Real {
		w.Errorf("admitted %v before its permit was back", -late[0])
	}
	w.checkAllKeysExpire()
}

// windowWaitCommands: a returned permit costs its next user one request, however many wait.
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
	for _, atOnce := range []int{0, 9} {
		for window := per; !w.refusesWait(atOnce, window); window *= 2 {
			if window > 8*per {
				w.Fatalf("not even of a window of %v was there half, from a refusal to the next", window)
			}
		}
	}
}

// refusesWait is refusedImmediately with one window. On a real server, which may be slow to answer, it returns false once the window
// may have passed before an answer came that depends on it: such an answer says nothing.
func (w *World) refusesWait(atOnce int, window time.Duration) bool {
	p := w.Process()
	name := fmt.Sprintf("x-%d-%v", atOnce, window)
	s := p.limiterOf(name, 3, window, atOnce)
	began := time.Now()
	first := w.mustTake(s, 2)
	w.giveBack(first)
	took := time.Now()
	away := func(windows time.Duration) bool { return !w.Real || time.Since(began) < windows*window }
	time.Sleep(window / 4)
	asked := time.Now()
	_, err := s.TryAcquire(w.ctx(), 2)
	delay := time.Since(asked)
	if !away(1) {
		return false
	}
	w.checkError(err, lockkeeper.ErrNotAcquired)
	rate := w.wantLimitedError(err)
	if rate.RetryAfter > window || !w.Real && rate.RetryAt != took.Add(window+time.Millisecond) {
		w.Errorf("RetryAfter %v, %v after the permits were taken", rate.RetryAfter, rate.RetryAt.Sub(took))
	}
	if rate.RetryAt.Before(began.Add(window)) || rate.RetryAt.Before(asked.Add(rate.RetryAfter)) {
		w.Errorf("RetryAt is %v after the permits were taken", rate.RetryAt.Sub(began))
	}

	// A wait whose deadline is too early is refused; a longer one is not.
	start := time.Now()
	before := 10 * time.Millisecond
	if w.Real { // RetryAt is too late by as much as the reply was
		before = delay + window/4
	}
	ctx, cancel := context.WithDeadline(w.ctx(), rate.RetryAt.Add(-before))
	defer cancel()
	p.Net.ResetCount()
	_, err = s.Acquire(ctx, 2)
	if w.Real && ctx.Err() != nil {
		return false
	}
	w.checkError(err, lockkeeper.ErrNotAcquired)
	early := w.wantLimitedError(err)
	if d := early.RetryAt.Sub(rate.RetryAt); !w.Real && d != 0 || d < -delay-2*time.Millisecond {
		w.Errorf("RetryAt was %v, and later %v more", rate.RetryAt, d)
	}
	if d := time.Since(start); !w.Real && d > window/2 {
		w.Errorf("the refusal took %v", d)
	}
	w.awaitWaiters(name, 0)
	free, err := s.Available(w.ctx())
	w.must(err)
	other := w.Process().limiterOf(name, 3, window, atOnce)
	free2, err := other.Available(w.ctx()) // it is connected
	w.must(err)
	if !away(1) {
		return false
	}
	if free != 1 || free2 != 1 {
		w.Fatalf("%d and %d permits may be had, want 1", free, free2)
	}
	late, cancel2 := context.WithDeadline(w.ctx(), rate.RetryAt.Add(time.Minute))
	defer cancel2()
	waits := make(chan taken, 1)
	go func() {
		g, err := other.Acquire(late, 2)
		waits <- taken{g, err, time.Now()}
	}()
	queued := func() bool {
		n, err := w.admin.ZCount(w.ctx(), w.queueKey(name), "-inf", protocol.BehindWaiters).Result()
		return err == nil && n == 1
	}
	w.eventually("1 waiter, or its grant", func() bool { return queued() || len(waits) == 1 })
	if !w.Real {
		synctest.Wait()
	}

	// Queued requests come first, and what they will take has to return as well. If the other has its permits by now, the answer is
	// the same.
	_, err = s.TryAcquire(w.ctx(), 2)
	if !away(2) {
		return false
	}
	w.checkError(err, lockkeeper.ErrNotAcquired)
	behind := w.wantLimitedError(err)
	if !w.Real && behind.RetryAt != rate.RetryAt.Add(window+time.Millisecond) {
		w.Errorf("RetryAt behind another is %v, and that of the other %v", behind.RetryAt, rate.RetryAt)
	}
	if !w.Real {
		time.Sleep(time.Until(rate.RetryAt.Add(-time.Millisecond)))
		w.notTaken(waits)
	}
	r := w.awaitTake(waits, window)
	w.must(r.err)
	if late := r.at.Sub(rate.RetryAt); !w.Real && (late < 0 || late > 2*time.Millisecond) {
		w.Errorf("admitted %v after RetryAt", late)
	}
	if d := w.grantTime(r.grant).Sub(w.grantTime(first)); d <= window-time.Millisecond {
		w.Errorf("admitted %v after the permits were taken", d)
	}
	w.giveBack(r.grant)

	// A caller that retries at RetryAt is served if there is nobody else.
	_, err = s.TryAcquire(w.ctx(), 3)
	if !away(2) {
		return false
	}
	w.checkError(err, lockkeeper.ErrNotAcquired)
	again := w.wantLimitedError(err)
	time.Sleep(time.Until(again.RetryAt.Add(-time.Millisecond)))
	if !w.Real {
		w.limited(s, 3)
	}
	time.Sleep(time.Until(again.RetryAt))
	g, err := s.TryAcquire(w.ctx(), 3)
	w.must(err)
	w.giveBack(g)
	return true
}

// permitsReturnByClockAlone: the end of the lease, if there is one, returns nothing to the window.
func permitsReturnByClockAlone(w *World) {
	window := w.window(per)
	for _, maxConcurrent := range []int{0, 3} {
		s := w.Process().limiter(3, window, maxConcurrent)
		g := w.mustTake(s, 2)
		w.checkAllKeysExpire()
		w.giveBack(g)
		w.giveBack(g)
		w.available(s, 1)
		w.wantLimitedError(w.limited(s, 2))
		w.eventually("the permits to return", func() bool {
			n, err := s.Available(w.ctx())
			return err == nil && n == 3
		})
		if d := time.Since(w.grantTime(g)); d <= window && !w.Real {
			w.Errorf("they were back after %v", d)
		}
		w.checkClean()
	}
}

// grantTime is when a request was granted by the server's clock.
func (w *World) grantTime(g grant) time.Time { return time.UnixMicro(int64(g.fence)) }

// cancelAtPermitReturn checks that a wait that is cancelled when its permit returns does not take it.
func cancelAtPermitReturn(w *World) {
	d, turns := 50*time.Millisecond, 20
	if w.Real { // long enough that the next one asks before the permit has returned
		d, turns = 4*time.Second, 3
	}
	p := w.Process()
	probe := w.Process().limiter(1, d, 0)
	for i := range turns {
		s := p.limiter(1, d, 0)
		lease, err := probe.Acquire(w.ctx(), 1)
		w.must(err)
		ctx, cancel := context.WithCancel(w.ctx())
		waits := w.takeAsync(ctx, 1, s, 1)
		offset := time.Duration(i%5-2) * 500 * time.Microsecond
		if !w.Real {
			time.Sleep(time.Until(w.grantTime(lease).Add(d + 2*time.Millisecond + offset)))
		} else {
			time.Sleep(time.Until(w.grantTime(lease).Add(d + 5*offset)))
		}
		cancel()
		if r := w.awaitTake(waits, 0); r.err != nil {
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
	w.eventually("nothing to be left but tombstones", func() bool {
		n, err := probe.Available(w.ctx())
		return err == nil && n == 1
	})
	w.checkOnlyTombstones()
}

func bothLimits(w *World) {
	const limit, atOnce = 5, 2
	s := w.Process().limiter(limit, 3*per, atOnce)
	start := time.Now()
	one, two := w.mustTake(s, 1), w.mustTake(s, 1)
	if err := w.limited(s, 1); errors.As(err, new(*ratelimit.LimitedError)) {
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
	waits := w.takeAsync(w.ctx(), 1, w.Process().limiter(limit, 3*per, atOnce), 2)
	holds(2, 2) // the waiter has taken nothing
	w.available(s, 0)
	w.giveBack(one)
	holds(1, 2)
	w.notTaken(waits)
	w.giveBack(two)
	r := w.awaitTake(waits, 0)
	w.must(r.err)
	three := r.grant
	holds(2, 4)
	w.available(s, 0)
	w.giveBack(three)
	holds(0, 4)
	w.available(s, 1)

	// Now it is the clock that two have to wait for, and they hold nothing meanwhile.
	rate := w.wantLimitedError(w.limited(s, 2))
	if rate.RetryAt.Before(start.Add(3 * per)) {
		w.Errorf("RetryAt is %v after the first permit was taken", rate.RetryAt.Sub(start))
	}
	waits = w.takeAsync(w.ctx(), 1, w.Process().limiter(limit, 3*per, atOnce), 2)
	holds(0, 4)
	r = w.awaitTake(waits, 3*per+2*time.Millisecond)
	w.must(r.err)
	if d := w.grantTime(r.grant).Sub(w.grantTime(one)); d <= 3*per-time.Millisecond {
		w.Errorf("admitted after %v", d)
	}
	time.Sleep(2 * ttl) // it is renewed, and the count of the clock is another matter
	w.must(r.grant.lease.Err())
	w.available(s, 0)
	w.giveBack(r.grant)
	w.checkAllKeysExpire()
}

// lostWakeupLosesNoPermit: five wait, and the message to the last is lost.
func lostWakeupLosesNoPermit(w *World) {
	const limit = 5
	window := w.window(per)
	p, unsubscribed := w.Process(), w.Process()
	s := p.limiter(limit, window, 0)
	w.mustTake(s, limit)
	var waits []chan taken
	for i := range limit {
		by := p
		if i == limit-1 {
			by = unsubscribed
		}
		waits = append(waits, w.takeAsync(w.ctx(), int64(i+1), by.limiter(limit, window, 0), 1))
	}
	unsubscribed.Net.BlackholeSubscriptions()
	first := w.awaitTake(waits[0], 2*window)
	w.must(first.err)
	r := w.awaitTake(waits[limit-1], heartbeatInterval+50*time.Millisecond)
	w.must(r.err)
	if d := w.grantTime(r.grant).Sub(w.grantTime(first.grant)); d > 50*time.Millisecond {
		w.Errorf("the waiter without a message was granted its permit %v after the first", d)
	}
	if late := r.at.Sub(first.at); !w.Real && late > heartbeatInterval+50*time.Millisecond {
		w.Errorf("the waiter without a message learned of its permit after %v", late)
	}
	holders, err := s.Holders(w.ctx())
	w.must(err)
	if !w.Real && len(holders) != limit {
		w.Errorf("%d grants for %d requests", len(holders), limit)
	}
	if n := w.spent(); n > limit || !w.Real && n != limit {
		w.Errorf("%d permits are away, want %d", n, limit)
	}
}

// spent is how many permits are away at the server, or have returned and were not yet taken out.
func (w *World) spent() int {
	w.Helper()
	list, err := w.admin.ZRangeWithScores(w.ctx(), w.P.Key("x"), 0, -1).Result()
	w.must(err)
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
			lease, err := f(w.ctx(), 3)
			w.must(err)
			want += 3
			if got := w.spent(); got != want {
				w.Errorf("%d permits are away, want %d", got, want)
			}
			w.giveBack(lease)
			w.must(p.Net.Replay())
			if got := w.spent(); got != want {
				w.Errorf("after a late copy %d permits are away, want %d", got, want)
			}
		}
	}
	// One whose caller has gone before it was answered gives back what it took.
	ctx, cancel := context.WithTimeout(w.ctx(), heartbeatInterval)
	defer cancel()
	p.Net.Break("evalsha", 1, faultnet.SwallowReply|faultnet.Copy)
	_, err := s.Acquire(ctx, 3)
	w.checkError(err, context.DeadlineExceeded, lockkeeper.ErrUnavailable)
	w.eventually("the permits to be given back", func() bool { return w.spent() == want })
	w.must(p.Net.Replay())
	if got := w.spent(); got != want {
		w.Errorf("after a late copy of a request that was given up %d permits are away, want %d", got, want)
	}
	w.available(s, 100-want)
	w.checkAllKeysExpire()
}

// windowClockSetBack: what was taken an hour ahead of the clock is away for a window from when somebody asks.
func windowClockSetBack(w *World) {
	if w.Real {
		return // its clock is the machine's
	}
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
	r := w.awaitTake(waits, 2*per)
	w.must(r.err)
	if d := r.at.Sub(start); d < per/2 || d > per+heartbeatInterval {
		w.Errorf("permits were away for %v after the clock was set back, the window is of %v", d, per)
	}
	w.available(s, 1)
	w.checkAllKeysExpire()
}

// permitsAfterDataLoss: permits that return by the clock are known to the server alone. If it loses its data, or its clock jumps
// ahead, a window may hold the limit twice, and no error reports it.
func permitsAfterDataLoss(w *World) {
	s := w.Process().limiter(2, time.Minute, 0)
	again := func(what string) {
		w.Helper()
		if _, err := s.TryAcquire(w.ctx(), 2); err != nil {
			w.Errorf("%s: %v", what, err)
		}
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
	if two.fence <= one.fence || waited.fence <= two.fence {
		w.Errorf("fences %d, %d, %d", one.fence, two.fence, waited.fence)
	}
	holders, err := s.Holders(w.ctx())
	w.must(err)
	_, err = p.limiter(2, per, 2).concurrent.Adopt(w.ctx(), holders[0].Token)
	w.checkError(err, lockkeeper.ErrLost)
	p.Net.ResetCount()
	time.Sleep(2 * per) // and long after its permit has returned
	if n := p.Net.Scripts(); n != 0 {
		w.Errorf("%d scripts for permits that are not held", n)
	}
	w.must(s.DoN(w.ctx(), 2, func(ctx context.Context, fence uint64) error {
		if fence <= waited.fence {
			w.Errorf("fence %d after %d", fence, waited.fence)
		}
		return ctx.Err()
	}))
	if lost.Load() != 0 || released.Load() != 0 {
		w.Errorf("%d were called lost and %d released", lost.Load(), released.Load())
	}
	w.checkClean()
}

// resultSaysWhatRemains: by the limit in force and the server's clock, and in the same step.
func resultSaysWhatRemains(w *World) {
	p, window := w.Process(), w.window(per)
	s := p.limiter(10, window, 0)
	is := func(n int, want ratelimit.Result) {
		w.Helper()
		got, err := s.byClock.AllowN(w.ctx(), n)
		w.must(err)
		if (got.Fence > 0) != want.Allowed {
			w.Errorf("fence %d: %+v", got.Fence, got)
		}
		got.Fence = 0
		if w.Real { // its clock moves
			got.RetryAfter, got.ResetAfter = want.RetryAfter, want.ResetAfter
		}
		if got != want {
			w.Errorf("for %d permits %+v, want %+v", n, got, want)
		}
	}
	const ms = time.Millisecond
	is(4, ratelimit.Result{Allowed: true, Limit: 10, Remaining: 6, ResetAfter: window + ms})
	p.Net.ResetCount() // the script is known
	time.Sleep(window / 4)
	is(7, ratelimit.Result{Limit: 10, Remaining: 6, RetryAfter: window*3/4 + ms, ResetAfter: window*3/4 + ms})
	is(6, ratelimit.Result{Allowed: true, Limit: 10, Remaining: 0, ResetAfter: window + ms})
	is(5, ratelimit.Result{Limit: 10, Remaining: 0, RetryAfter: window + ms, ResetAfter: window + ms})
	if n := p.Net.Scripts(); n != 3 {
		w.Errorf("%d scripts for 3 answers", n)
	}
	w.must(s.SetLimit(w.ctx(), 12))
	is(2, ratelimit.Result{Allowed: true, Limit: 12, Remaining: 0, ResetAfter: window + ms})
	w.eventually("all to return", func() bool {
		n, err := s.Available(w.ctx())
		return err == nil && n == 12
	})
	is(1, ratelimit.Result{Allowed: true, Limit: 12, Remaining: 11, ResetAfter: window + ms})
	w.must(s.SetLimit(w.ctx(), 2))
	_, err := s.byClock.AllowN(w.ctx(), 3)
	w.checkError(err, ratelimit.ErrAboveLimit)
}

func closeDuringWindow(w *World) {
	p, q := w.Process(), w.Process()
	s := q.limiter(3, time.Minute, 0)
	w.mustTake(s, 1)
	w.mustTake(p.limiter(3, time.Minute, 0), 1)
	var waits []chan taken
	for i := range 5 {
		waits = append(waits, w.takeAsync(w.ctx(), int64(i+1), p.limiter(3, time.Minute, 0), 2))
	}
	start := time.Now()
	w.must(p.Close())
	if d := time.Since(start); d > 3*time.Second {
		w.Errorf("Close took %v", d)
	}
	for _, ch := range waits {
		w.checkError(w.awaitTake(ch, 0).err, lockkeeper.ErrClosed)
	}
	w.awaitWaiters("x", 0)
	w.available(s, 1) // what was taken is away, what was waited for is not
	closed := p.limiter(3, time.Minute, 0)
	_, err := closed.Acquire(w.ctx(), 1)
	w.checkError(err, lockkeeper.ErrClosed)
	_, err = closed.Available(w.ctx())
	w.checkError(err, lockkeeper.ErrClosed)
	w.checkError(closed.SetLimit(w.ctx(), 1), lockkeeper.ErrClosed)
	w.must(p.RDB.Ping(w.ctx()).Err())
}

// metadataOutlastsWindow: the limit in force is known for as long as permits are away.
func metadataOutlastsWindow(w *World) {
	const d = 24 * time.Hour // Idle is an hour
	w.mustTake(w.Process().limiter(2, d, 0), 1)
	left, err := w.admin.PTTL(w.ctx(), w.metaKey("x")).Result()
	w.must(err)
	if left < d {
		w.Errorf("the metadata expire in %v, and the permit returns in %v", left, d)
	}
	w.must(w.admin.FlushDB(w.ctx()).Err())
}

// headNotifiedWhen: the head of the queue was sent the time at which its eight of ten permits will have returned. Something
// makes that sooner, so that it has to be notified: no heartbeat is due.
func headNotifiedWhen(w *World, sooner func(p *Process, s limiter)) {
	d := w.window(headWindow)
	p := w.Process(slowHeartbeats)
	s := p.limiter(10, d, 0)
	w.mustTake(s, 5)
	start := time.Now()
	time.Sleep(d / 4)
	sooner(p, s)
	due := start.Add(d)
	waits := w.takeAsync(w.ctx(), 1, w.Process(slowHeartbeats).limiter(10, d, 0), 8)
	time.Sleep(time.Until(start.Add(d / 2)))
	sooner(nil, s)
	r := w.awaitTake(waits, time.Until(due)+2*time.Millisecond)
	w.must(r.err)
	if late := r.at.Sub(due); !w.Real && late > d/8 {
		w.Errorf("it was served %v late", late)
	}
	w.checkAllKeysExpire()
}

// headWindow is the window of headNotifiedWhen.
const headWindow = 2 * time.Second

func raisedLimitNotifiesHead(w *World) {
	headNotifiedWhen(w, func(p *Process, s limiter) {
		if p != nil {
			w.mustTake(s, 5)
		} else {
			w.must(s.SetLimit(w.ctx(), 13))
		}
	})
}

func callersLimitNotifiesHead(w *World) {
	headNotifiedWhen(w, func(p *Process, s limiter) {
		if p != nil {
			w.mustTake(s, 5)
		} else {
			w.limited(w.Process(slowHeartbeats).limiter(13, w.window(headWindow), 0), 4)
		}
	})
}

// unusedPermitsNotifyHead: permits that somebody took and never learned of are given back.
func unusedPermitsNotifyHead(w *World) {
	w.clientTimeout = time.Minute // the request is not repeated before it is cancelled
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	headNotifiedWhen(w, func(p *Process, s limiter) {
		if p != nil {
			p.Net.Break("evalsha", 1, faultnet.SwallowReply)
			go func() { _, _ = s.Acquire(ctx, 5) }()
			w.eventually("the permits to be taken", func() bool { return w.spent() == 10 })
		} else {
			cancel()
			w.eventually("the permits to be given back", func() bool { return w.spent() == 5 })
		}
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
	if after := w.wantLimitedError(w.limited(s, 1)).RetryAfter; after > d+time.Second {
		w.Errorf("retry after %v", after)
	}
	hurries, cancelWait := context.WithTimeout(w.ctx(), 2*d)
	defer cancelWait()
	waits := make(chan taken, 1)
	go func() {
		lease, err := s.Acquire(hurries, 1)
		waits <- taken{lease, err, time.Now()}
	}()
	select {
	case r := <-waits:
		w.Errorf("with two windows to go: %v", r.err)
	case <-time.After(heartbeatInterval):
	}
}

// lateDuplicatesOfPermits: what was repeated because an answer was lost arrives once more, when it is all over.
func lateDuplicatesOfPermits(w *World) {
	const d = 300 * time.Millisecond
	p := w.Process()
	s := p.limiter(3, d, 0)
	for _, f := range []func(context.Context, int) (grant, error){s.Acquire, s.TryAcquire} {
		w.mustTake(s, 1) // the scripts are known
		time.Sleep(d + 10*time.Millisecond)
		p.Net.Break("evalsha", 1, faultnet.CutReply|faultnet.Copy)
		lease, err := f(w.ctx(), 3)
		w.must(err)
		w.giveBack(lease)
		time.Sleep(d + 10*time.Millisecond)
		w.available(s, 3)
		w.must(p.Net.Replay())
		w.available(s, 3)
	}
}

// setLimitOfOtherKind: who knows of another window and of a bound on concurrent calls sets the limit of the window that is in force, and
// nothing else.
func setLimitOfOtherKind(w *World) {
	w.mustTake(w.Process().limiter(10, time.Minute, 0), 1)
	w.must(w.Process().limiter(100, time.Second, 5).SetLimit(w.ctx(), 2))
	limits, err := w.admin.HGet(w.ctx(), w.metaKey("x"), "limits").Result()
	w.must(err)
	if want := "0:10:60000 0:2:60000"; limits != want {
		w.Errorf("limits %q, want %q", limits, want)
	}
}

// submillisecondWindow: a window that is not a whole number of milliseconds is never shorter than what was asked for.
func submillisecondWindow(w *World) {
	if w.Real {
		return // its clock moves between the two
	}
	s := w.Process().limiter(1, 10*time.Millisecond+time.Microsecond, 0)
	w.mustTake(s, 1)
	time.Sleep(11 * time.Millisecond)
	w.limited(s, 1)
	time.Sleep(time.Millisecond)
	w.mustTake(s, 1)
}

// leaselessCalls are the calls of a limiter without leases that take a permit, or try to.
func leaselessCalls(s limiter) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"Allow": func(ctx context.Context) error {
			r, err := s.byClock.Allow(ctx)
			if err == nil && !r.Allowed {
				return notAllowed{}
			}
			return err
		},
		"Wait": s.byClock.Wait,
		"Do": func(ctx context.Context) error {
			return s.byClock.Do(ctx, func(ctx context.Context, _ uint64) error { return ctx.Err() })
		},
	}
}

func scriptFlushForLimits(w *World) {
	s := w.Process().limiter(100, time.Minute, 0)
	for what, call := range leaselessCalls(s) {
		for range 2 {
			w.must(w.admin.ScriptFlush(w.ctx()).Err())
			if err := call(w.ctx()); err != nil {
				w.Errorf("%s: %v", what, err)
			}
		}
	}
	if n := w.spent(); n != 6 {
		w.Errorf("six calls took %d permits", n)
	}
}

func endedContextForLimits(w *World) {
	p := w.Process()
	s := p.limiter(100, time.Minute, 0)
	ctx, cancel := context.WithCancel(w.ctx())
	cancel()
	p.Net.ResetCount()
	for what, call := range leaselessCalls(s) {
		err := call(ctx)
		w.checkError(err, context.Canceled)
		if err == nil {
			w.Errorf("%s succeeded", what)
		}
	}
	_, err := s.Available(ctx)
	w.checkError(err, context.Canceled)
	w.checkError(s.SetLimit(ctx, 1), context.Canceled)
	if !w.Real {
		synctest.Wait()
	}
	if n := p.Net.Scripts(); n != 0 {
		w.Errorf("%d scripts were sent", n)
	}
}

// allowDoesNotJump: a permit is left, but a waiter before needs it.
func allowDoesNotJump(w *World) {
	p, q := w.Process(), w.Process()
	s := p.limiter(2, time.Minute, 0)
	w.mustTake(s, 1)
	ctx, cancel := context.WithCancel(w.ctx())
	heavy := w.takeAsync(ctx, 1, q.limiter(2, time.Minute, 0), 2)
	r, err := s.byClock.Allow(w.ctx())
	w.must(err)
	if r.Allowed || r.Remaining != 1 || r.Fence != 0 {
		w.Errorf("while a request for two is queued: %+v", r)
	}
	w.notTaken(heavy)
	cancel()
	w.checkError(w.awaitTake(heavy, 0).err, context.Canceled, lockkeeper.ErrNotAcquired)
	w.awaitWaiters("x", 0)
	if r, err := s.byClock.Allow(w.ctx()); err != nil || !r.Allowed || r.Remaining != 0 {
		w.Errorf("after it: %+v, %v", r, err)
	}
}

// foreignKeyForLimits: the key of the limit has another type. No call changes it.
func foreignKeyForLimits(w *World) {
	s := w.Process().limiter(2, time.Minute, 0)
	w.must(w.admin.Set(w.ctx(), w.P.Key("x"), "theirs", time.Minute).Err())
	for what, call := range leaselessCalls(s) {
		err := call(w.ctx())
		w.checkError(err)
		if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
			w.Errorf("%s: %v", what, err)
		}
	}
	if got := w.admin.Get(w.ctx(), w.P.Key("x")).Val(); got != "theirs" {
		w.Errorf("the key is %q", got)
	}
	w.awaitWaiters("x", 0)
}

// writesRefusedForLimits: a server that cannot replicate refuses every call, except that a try which finds no permit is refused
// as on any server, since that needs no write.
func writesRefusedForLimits(w *World) {
	s := w.Process(func(o *lockkeeper.Options) { o.Retry.MaxElapsed = heartbeatInterval }).limiter(2, time.Minute, 0)
	for _, taken := range []int{0, 2} {
		if taken > 0 {
			w.mustTake(s, taken)
		}
		w.must(w.admin.ConfigSet(w.ctx(), "min-replicas-to-write", "1").Err())
		for what, call := range leaselessCalls(s) {
			err := call(w.ctx())
			if strings.HasPrefix(what, "Allow") && taken == 2 {
				w.checkError(err, lockkeeper.ErrNotAcquired)
				continue
			}
			w.checkError(err, lockkeeper.ErrUnavailable)
			if !redis.HasErrorPrefix(err, "NOREPLICAS") {
				w.Errorf("%s, with %d taken: %v", what, taken, err)
			}
		}
		w.must(w.admin.ConfigSet(w.ctx(), "min-replicas-to-write", "0").Err())
		if n := w.spent(); n != taken {
			w.Errorf("%d permits are taken, want %d", n, taken)
		}
	}
}

// outageForLimits: permits that return by the clock, and limits.
func outageForLimits(w *World) {
	p := w.Process()
	s := p.limiter(1, time.Minute, 0)
	w.mustTake(s, 1)
	err := w.callWithTimeout(heartbeatInterval, func(ctx context.Context) error { _, err := s.Acquire(ctx, 1); return err })
	w.checkError(err, lockkeeper.ErrNotAcquired)
	var soon *ratelimit.LimitedError
	if !errors.As(err, &soon) {
		w.Errorf("the error is not a LimitedError: %v", err)
	}
	defer w.freeze(p)()
	w.expectUnavailable("Acquire", heartbeatInterval, func(ctx context.Context) error { _, err := s.Acquire(ctx, 1); return err })
	w.expectUnavailable("SetLimit", heartbeatInterval, func(ctx context.Context) error { return s.SetLimit(ctx, 2) })
	w.expectUnavailable("Available", heartbeatInterval, errorOnly(s.Available))
}

// contendForLimit takes random numbers of permits from several processes at once, and calls f with what it was granted.
func (w *World) contendForLimit(processes, goroutines, rounds, limit int, window time.Duration, maxConcurrent int, f func(grant, int)) {
	seed := rand.Uint64()
	w.Logf("seed %d", seed)
	var list []limiter
	for range processes {
		list = append(list, w.Process().limiter(limit, window, maxConcurrent))
	}
	parallel(processes*goroutines, func(i int) {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		for range rounds {
			n := 1 + r.IntN(limit)
			g, err := list[i%processes].Acquire(w.ctx(), n)
			if err != nil {
				w.Error(err)
				return
			}
			f(g, n)
			time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
		}
	})
}

func invalidLimitCounts(w *World) {
	p := w.Process()
	p.Net.ResetCount()
	for _, s := range []limiter{p.limiter(9, per, 3), p.limiter(3, per, 0)} {
		for _, n := range []int{0, -1, 4} {
			_, err := s.Acquire(w.ctx(), n)
			w.checkError(err, lockkeeper.ErrInvalid)
			_, err = s.TryAcquire(w.ctx(), n)
			w.checkError(err, lockkeeper.ErrInvalid)
			if s.byClock != nil {
				w.checkError(s.byClock.WaitN(w.ctx(), n), lockkeeper.ErrInvalid)
			}
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
	s := p.limiter(3, per, 0)
	w.mustTake(s, 1)
	w.must(s.SetLimit(w.ctx(), 2))
	ctx, cancel := context.WithTimeout(w.ctx(), 10*time.Second)
	_, err := s.Acquire(ctx, 3)
	cancel()
	w.checkError(err, ratelimit.ErrAboveLimit)
	_, err = s.TryAcquire(w.ctx(), 3)
	w.checkError(err, ratelimit.ErrAboveLimit)
	w.awaitWaiters("x", 0)
}

// latestCallersWindowLimit: SetLimit is in force for those who know the same limit as before, until one comes who knows
// another.
func latestCallersWindowLimit(w *World) {
	changed := make(chan int, 10)
	hook := func(o *lockkeeper.Options) {
		o.Hooks.LimitChanged = func(e lockkeeper.Event) {
			if e.Kind != "ratelimit" {
				w.Errorf("%+v", e)
			}
			changed <- e.Limit
		}
	}
	for _, maxConcurrent := range []int{0, 100} {
		a, b := w.Process(hook).limiter(4, time.Hour, maxConcurrent), w.Process(hook).limiter(4, time.Hour, maxConcurrent)
		take := func(l limiter) { w.giveBack(w.mustTake(l, 1)) } // it does not return for an hour
		take(a)
		w.available(a, 3)
		w.must(a.SetLimit(w.ctx(), 2))
		take(b)
		w.available(b, 0)
		c := w.Process(hook).limiter(7, time.Hour, maxConcurrent)
		take(c)
		w.available(b, 4)
		take(a) // the old limit is in force again, as that of the latest caller
		w.available(b, 0)
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
}

// inspectRateLimit: without leases the holders are those whose permits have not returned.
func inspectRateLimit(w *World) {
	p := w.Process()
	s := p.limiter(5, time.Minute, 0)
	g := w.mustTake(s, 3)
	ctx, cancel := context.WithCancel(w.ctx())
	waits := w.takeAsync(ctx, 1, s, 4)
	list, err := s.Holders(w.ctx())
	w.must(err)
	if len(list) != 1 || list[0].Permits != 3 || list[0].Keeper != p.ID() || list[0].Fence != g.fence || list[0].ExpiresIn <= 0 || list[0].ExpiresIn > time.Minute+time.Millisecond {
		w.Errorf("holders %+v", list)
	}
	queue, err := s.Waiters(w.ctx())
	w.must(err)
	if len(queue) != 1 || queue[0].Permits != 4 || !queue[0].Alive || queue[0].Keeper != p.ID() {
		w.Errorf("waiters %+v", queue)
	}
	w.available(s, 2)
	cancel()
	w.checkError(w.awaitTake(waits, 0).err, lockkeeper.ErrNotAcquired, context.Canceled)
	w.awaitWaiters("x", 0)
	w.must(w.admin.Del(w.ctx(), w.P.Key("x"), w.metaKey("x")).Err())

	s = p.limiter(5, time.Minute, 5)
	g = w.mustTake(s, 3)
	list, err = s.Holders(w.ctx())
	w.must(err)
	if len(list) != 1 || list[0].Permits != 3 || list[0].Token != g.lease.Token() || list[0].ExpiresIn > ttl {
		w.Errorf("holders %+v", list)
	}
	w.giveBack(g)
	if list, err = s.Holders(w.ctx()); err != nil || len(list) != 0 {
		w.Errorf("holders %+v, %v", list, err)
	}
}
