package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/redis/go-redis/v9"
)

var cases = []Case{
	{Name: "01_shared_counter", Test: sharedCounter},
	{Name: "02_one_of_100_try_locks_succeeds", Test: oneTryLockSucceeds},
	{Name: "03_contended_try_lock_returns_immediately", Test: tryLockRefused},
	{Name: "04_reacquire_after_release", Test: reacquire},
	{Name: "05_release_twice_nil_or_after_loss", Test: releaseTwice},
	{Name: "06_wrong_token_changes_nothing", Test: wrongToken},
	{Name: "07_release_with_cancelled_context", Test: releaseWithCancelledContext},
	{Name: "08_wait_cancelled_during_grant_cleans_up", Test: cancelDuringGrant},
	{Name: "09_lost_acquire_reply_is_retried", Test: lostAcquireReply},
	{Name: "09_late_duplicate_request_acquires_nothing", Test: lateDuplicate},
	{Name: "10_names", Test: nameRules},
	{Name: "11_invalid_options_rejected", Test: invalidOptions},
	{Name: "12_script_flush_is_transparent", Alone: true, Test: scriptFlush},
	{Name: "13_adopt_by_token", Test: adopt},
	{Name: "14_wait_deadline_error_matches_both", Test: waitDeadline},
	{Name: "15_wait_without_deadline_outlasts_ttl", Test: longWait},
	{Name: "16_cancel_100_waiters", Test: cancelManyWaiters},
	{Name: "17_crashed_holder_replaced_at_lease_expiry", Test: holderCrashes},
	{Name: "20_ended_context_sends_nothing", Test: endedContext},
	{Name: "21_renewal_extends_lease_past_ttl", Test: renewal},
	{Name: "22_extend", Test: extend},
	{Name: "23_lock_removed_by_hand_is_lost", Test: removedByHand},
	{Name: "24_no_spurious_loss", Test: noSpuriousLoss},
	{Name: "26_unreachable_server_is_loss_at_deadline", Test: unreachableServer},
	{Name: "27_renewal_ends_with_release_and_max_lifetime", Test: renewalEnds},
	{Name: "28_fences_rise", Alone: true, Test: fencesRise},
	{Name: "54_close", Test: closeKeeper},
	{Name: "55_foreign_key_is_untouched", Test: foreignKey},
	{Name: "56_redis_errors_are_wrapped", Real: true, Alone: true, Test: redisErrors},
	{Name: "56_server_down_is_not_contention", Test: serverDown},
	{Name: "58_do", Test: doCases},
	{Name: "60_late_grant_is_retried", Test: lateGrant("Lock")},
	{Name: "60_late_grant_without_deadline_is_retried", Test: lateGrant("Lock without cancellation")},
	{Name: "60_late_grant_to_try_lock_is_retried", Test: lateGrant("TryLock")},
	{Name: "60_server_slower_than_ttl_is_an_error", Embedded: true, Test: alwaysLateReplies},
	{Name: "server_clock_jumps_past_lease", Embedded: true, Test: clockJumpsPastLease},
	{Name: "server_clock_anywhere", Embedded: true, Test: anyServerClock(reacquire, holderCrashes, renewal)},
	{Name: "key_without_expiry_is_healed", Test: keyWithoutExpiry},
}

// queued are the cases of primitives with a queue at the server.
var queued = []Case{
	{Name: "18_lost_wakeup_recovered_by_heartbeat", Test: wakeupLost},
	{Name: "18_stale_subscription_recovered_by_heartbeat", Test: staleSubscription},
	{Name: "19_commands_per_handoff_are_constant", Real: true, Test: handoffCommandsConstant},
	{Name: "27_short_queued_lease_lasts_full_ttl", Test: shortLease},
	{Name: "60_late_adopt_is_retried", Test: lateAdoption},
	{Name: "33_crashed_waiter_is_skipped", Test: waiterCrashes},
	{Name: "server_clock_set_back_then_holder_crashes", Embedded: true, Test: clockSetBackWhileHeld},
	{Name: "57_no_permission_to_subscribe_or_publish", Real: true, Alone: true, Test: noPubSubPermission},
}

// ordered are the cases of primitives that serve waiters in order.
var ordered = []Case{
	{Name: "30_waiters_served_in_order", Test: servedInOrder},
	{Name: "31_try_lock_does_not_jump_queue", Test: tryLockDoesNotJump},
	{Name: "32_middle_waiter_crashes", Test: middleWaiterCrashes},
	{Name: "33_disconnected_waiter_keeps_position", Test: disconnectedKeepsPosition},
	{Name: "34_holder_crashes_after_quick_handoffs", Test: crashAfterHandoffs},
	{Name: "35_cancelled_middle_waiter_leaves_no_entry", Test: cancelMiddleWaiter},
	{Name: "inspect_queue_changes_nothing", Test: inspectQueue},
	{Name: "server_clock_jumps", Embedded: true, Test: clockJumps},
}

func sharedCounter(w *World) {
	const keepers, goroutines, rounds = 16, 3, 5
	var c counter
	var ls []Locker
	for range keepers {
		ls = append(ls, w.Process().Lock("counter"))
	}
	parallel(keepers, func(i int) {
		l := ls[i]
		parallel(goroutines, func(int) {
			for range rounds {
				must.Report(w, l.Do(w.ctx(), func(context.Context, uint64) error { c.inc(); return nil }))
			}
		})
	})
	want := keepers * goroutines * rounds
	check.That(w, c.n == want && c.overlaps.Load() == 0, "counted %d of %d, %d overlaps", c.n, want, c.overlaps.Load())
	w.checkClean()
}

func oneTryLockSucceeds(w *World) {
	p, q := w.Process().Lock("one"), w.Process().Lock("one")
	var won atomic.Int32
	parallel(100, func(i int) {
		l := p
		if i%2 == 0 {
			l = q
		}
		if _, err := l.TryLock(w.ctx()); err == nil {
			won.Add(1)
		} else {
			w.checkError(err, lockkeeper.ErrNotAcquired)
		}
	})
	check.That(w, won.Load() == 1, "%d TryLock calls succeeded", won.Load())
}

func tryLockRefused(w *World) {
	l := w.hold(w.Process().Lock("x"))
	before := w.keys()
	w.checkError(errorOf(w.Process().Lock("x").TryLock(w.ctx())), lockkeeper.ErrNotAcquired)
	after := w.keys()
	check.That(w, strings.Join(before, " ") == strings.Join(after, " "), "keys before: %v, after: %v", before, after)
	w.release(l)
	w.checkClean()
}

func releaseTwice(w *World) {
	l := w.Process().Lock("x", withoutRenewal)
	lease := w.hold(l)
	w.release(lease)
	w.release(lease)
	w.checkError(lease.Err(), lockkeeper.ErrReleased)
	var none *lockkeeper.Lease
	w.release(none)

	lost := w.hold(l)
	w.awaitLoss(lost, ttl)
	w.checkError(lost.Release(w.ctx()), lockkeeper.ErrLost)
	w.checkError(lost.Release(w.ctx()), lockkeeper.ErrLost)
	w.checkClean()
}

func wrongToken(w *World) {
	a, b := w.Process(), w.Process()
	old := w.hold(a.Lock("x", withoutRenewal))
	a.Crash()
	w.awaitLoss(old, ttl)
	now := w.hold(b.Lock("x", withTTL(time.Minute)))
	a.Net.Restore()
	w.checkError(old.Release(w.ctx()), lockkeeper.ErrLost)
	w.checkError(old.Extend(w.ctx(), time.Second), lockkeeper.ErrLost)
	for _, token := range []string{now.Token()[:len(now.Token())-1], now.Token() + "0", "x", old.Token()} {
		w.checkError(errorOf(a.Lock("x").Adopt(w.ctx(), token)), lockkeeper.ErrLost)
	}
	w.checkError(errorOf(a.Lock("x").TryLock(w.ctx())), lockkeeper.ErrNotAcquired)
	w.must(now.Err())
	w.release(now)
}

func releaseWithCancelledContext(w *World) {
	l := w.Process().Lock("x")
	ctx, cancel := context.WithCancel(w.ctx())
	lease := must.Get(l.Lock(ctx))(w)
	cancel()
	w.must(lease.Release(ctx))
	keys := w.keys()
	check.That(w, len(keys) == 0, "left: %v", keys)
}

func cancelDuringGrant(w *World) {
	p, q := w.Process(), w.Process()
	for i := range 20 {
		name := fmt.Sprintf("x%d", i)
		lease := w.hold(p.Lock(name))
		ctx, cancel := context.WithCancel(w.ctx())
		l := q.Lock(name)
		ch := w.lockAsync(ctx, l)
		w.awaitWaiters(name, 1)
		parallel(2, func(k int) {
			if k == 0 {
				cancel()
			} else {
				w.release(lease)
			}
		})
		if r := await(w, ch, 0); r.err == nil {
			w.release(r.lease)
		} else {
			w.checkError(r.err, lockkeeper.ErrNotAcquired, context.Canceled)
		}
		w.checkOnlyTombstones()
		w.checkFree(l)
	}
	w.checkOnlyTombstones()
}

func lostAcquireReply(w *World) {
	for _, fault := range []faultnet.Fault{faultnet.CutReply, faultnet.TruncateReply, faultnet.SwallowReply, faultnet.LoseRequest} {
		p := w.Process()
		l := p.Lock("x", withTTL(10*time.Second))
		w.checkFree(l) // load the scripts
		p.Net.Break("evalsha", 1, fault)
		lease := w.hold(l)
		again := must.Get(l.Adopt(w.ctx(), lease.Token()))(w)
		check.That(w, again.Fence() == lease.Fence(), "fence %d, and %d at the server", lease.Fence(), again.Fence())
		p.Net.Break("evalsha", 1, fault)
		w.release(lease)
		w.checkOnlyTombstones()

		p.Net.Break("evalsha", 1, fault)
		lease = must.Get(l.TryLock(w.ctx()))(w)
		w.release(lease)
		w.checkOnlyTombstones()
	}
}

// lateDuplicate checks that a late copy of a request grants nothing: the first copy is delayed, the second is
// answered and its lease released, and then the first arrives.
func lateDuplicate(w *World) {
	p := w.Process()
	l := p.Lock("x", withTTL(time.Minute))
	w.checkFree(l)
	p.Net.Break("evalsha", 1, faultnet.CutReply|faultnet.Copy)
	lease := w.hold(l)
	w.release(lease)
	ctx := must.Within(w, heartbeatInterval)
	p.Net.Break("evalsha", 1, faultnet.SwallowReply|faultnet.Copy)
	w.checkError(errorOf(l.Lock(ctx)), context.DeadlineExceeded, lockkeeper.ErrUnavailable)
	w.checkOnlyTombstones()
	w.must(p.Net.Replay())
	w.checkOnlyTombstones()
	w.checkFree(l)
}

func nameRules(w *World) {
	p := w.Process()
	for _, name := range []string{
		"a", "A", strings.Repeat("n", 1000), "with spaces", "wörld-☂", "{a}", "{a}:b", "a{b}c", "new\nline", "nul\x00", "\xff\xfe", "a{b", ":", "{",
	} {
		l := p.Lock(name)
		lease := w.hold(l)
		check.That(w, lease.Name() == name && l.Name() == name, "name %q became %q", name, lease.Name())
		w.checkError(errorOf(l.TryLock(w.ctx())), lockkeeper.ErrNotAcquired)
		if name == "a" {
			w.checkFree(p.Lock("A")) // names are case-sensitive
		}
		w.release(lease)
	}
	for _, name := range []string{"", strings.Repeat("n", 1025), "}", "a}{b", "a{}b", "{}"} {
		_, err := w.P.New(p.Keeper, name, Options{TTL: ttl})
		w.checkError(err, lockkeeper.ErrInvalid)
		check.That(w, len(name) == 0 || len(name) >= 100 || strings.Contains(err.Error(), name),
			"the error does not name %q: %v", name, err)
	}
	w.checkClean()
}

func invalidOptions(w *World) {
	p := w.Process()
	for _, o := range []Options{
		{TTL: -time.Second}, {TTL: 1}, {TTL: 1<<63 - 1},
		{TTL: time.Second, MaxLifetime: time.Millisecond}, {TTL: time.Second, MaxLifetime: -1},
	} {
		_, err := w.P.New(p.Keeper, "x", o)
		w.checkError(err, lockkeeper.ErrInvalid)
		text := fmt.Sprint(err)
		check.That(w, strings.Contains(text, "TTL") || strings.Contains(text, "MaxLifetime"), "the error names no option: %s", text)
	}
	w.checkError(errorOf(w.P.New(nil, "x", Options{TTL: ttl})), lockkeeper.ErrInvalid)
}

func scriptFlush(w *World) {
	p := w.Process()
	l := p.Lock("x")
	for range 3 {
		w.must(w.admin.ScriptFlush(w.ctx()).Err())
		lease := w.hold(l)
		w.must(w.admin.ScriptFlush(w.ctx()).Err())
		w.must(lease.Extend(w.ctx(), ttl))
		w.must(w.admin.ScriptFlush(w.ctx()).Err())
		ch := w.acquireAsync(w.ctx(), 1, w.Process().Lock("x").Lock)
		w.must(w.admin.ScriptFlush(w.ctx()).Err())
		w.release(lease)
		w.release(await(w, ch, heartbeatInterval).lease)
	}
	w.checkClean()
}

func adopt(w *World) {
	a, b := w.Process(), w.Process()
	l := a.Lock("x", withoutRenewal)
	first := w.hold(l)
	a.Crash() // it crashes after it has passed on its token
	second := must.Get(b.Lock("x").Adopt(w.ctx(), first.Token()))(w)
	check.That(w, second.Fence() == first.Fence() && second.Token() == first.Token(), "adopted %v, not %v", second.Token(), first.Token())
	time.Sleep(2 * ttl) // renewed by its new owner
	w.must(second.Err())
	w.must(second.Extend(w.ctx(), time.Second))
	w.release(second)
	w.checkError(errorOf(b.Lock("x").Adopt(w.ctx(), first.Token())), lockkeeper.ErrLost)
	w.checkOnlyTombstones() // the new owner cannot know whether a copy of the request is still under way
}

// lateGrant checks a request whose reply arrives after the lease has expired. The caller must neither return that
// lease nor wait until its next heartbeat: nobody holds the lock.
func lateGrant(call string) func(*World) {
	return func(w *World) {
		ctx := w.ctx()
		if call == "Lock" {
			var cancel func()
			ctx, cancel = context.WithTimeout(ctx, time.Hour)
			defer cancel()
		}
		for _, late := range []func(*faultnet.Net, time.Duration){(*faultnet.Net).Delay, (*faultnet.Net).DelayReplies} {
			p := w.Process()
			l := p.Lock("x")
			w.checkFree(l) // open connections and load scripts
			late(p.Net, 3*ttl/2)
			acquire := l.Lock
			if call == "TryLock" {
				acquire = l.TryLock
			}
			ch := w.start(ctx, acquire)
			time.Sleep(ttl)
			late(p.Net, 0)
			r := w.awaitGrant(ch, 2*ttl)
			w.must(r.lease.Err())
			if call != "TryLock" { // and the next caller in this process
				ch = w.start(ctx, acquire)
				time.Sleep(ttl / 10)
			}
			w.release(r.lease)
			if call != "TryLock" {
				w.release(w.awaitGrant(ch, 2*heartbeatInterval).lease)
			}
		}
		w.checkOnlyTombstones()
	}
}

// lateAdoption checks that Adopt is repeated if its reply arrives after the time that it grants.
func lateAdoption(w *World) {
	w.clientTimeout = time.Minute // the reply is awaited
	a, b := w.Process(), w.Process()
	first := w.hold(a.Lock("x", withoutRenewal, withTTL(time.Minute)))
	a.Crash()
	l := b.Lock("x")
	w.checkFree(b.Lock("y"))
	b.Net.DelayReplies(3 * ttl / 2)
	ch := w.start(w.ctx(), func(ctx context.Context) (*lockkeeper.Lease, error) { return l.Adopt(ctx, first.Token()) })
	time.Sleep(2 * ttl)
	b.Net.DelayReplies(0)
	r := w.awaitGrant(ch, 2*ttl)
	w.must(r.lease.Err())
	w.release(r.lease)
	w.checkOnlyTombstones()
}

// alwaysLateReplies checks that calls fail if every reply arrives after the lease's time. The error is not
// contention, and a wait ends with the caller's context or by the retry policy.
func alwaysLateReplies(w *World) {
	p := w.Process(func(o *lockkeeper.Options) { o.Retry.MaxElapsed = 6 * ttl })
	l := p.Lock("x")
	w.checkFree(l)
	p.Net.Delay(5 * ttl / 4)
	p.Net.ResetCount()
	start := time.Now()
	w.checkLockTimesOut(l, 5*ttl)
	check.That(w, p.Net.Scripts() <= 30, "%d commands in %v", p.Net.Scripts(), time.Since(start))
	for what, call := range map[string]acquire{"Lock": l.Lock, "TryLock": l.TryLock} {
		if got := await(w, w.start(w.ctx(), call), 20*ttl); got.err == nil {
			w.Errorf("%s: it returned an expired lease", what)
		} else {
			w.checkError(got.err, lockkeeper.ErrUnavailable)
		}
	}
	p.Net.Delay(0)
	w.eventually("the lock to be free", func() bool { return lockOnce(w.ctx(), l.TryLock) == nil })
	w.checkOnlyTombstones()
}

func waitDeadline(w *World) {
	lease := w.hold(w.Process().Lock("x"))
	l := w.Process().Lock("x")
	ctx := must.Within(w, heartbeatInterval)
	r := await(w, w.lockAsync(ctx, l), heartbeatInterval)
	w.checkError(r.err, context.DeadlineExceeded, lockkeeper.ErrNotAcquired)
	w.release(lease)
	w.checkClean()
}

func longWait(w *World) {
	lease := w.hold(w.Process().Lock("x"))
	ch := w.lockAsync(w.ctx(), w.Process().Lock("x"))
	time.Sleep(2 * ttl)
	w.must(lease.Err())
	w.expectNotGranted(ch)
	w.release(lease)
	w.release(w.awaitGrant(ch, heartbeatInterval).lease)
	w.checkClean()
}

func cancelManyWaiters(w *World) {
	lease := w.hold(w.Process().Lock("x"))
	p := w.Process()
	ctx, cancel := context.WithCancelCause(w.ctx())
	var chans []chan result
	for range 100 {
		chans = append(chans, w.lockAsync(ctx, p.Lock("x")))
	}
	w.awaitWaiters("x", map[bool]int64{true: 100, false: 1}[w.P.Fair])
	cancel(errCause)
	waited := 0
	for _, ch := range chans {
		err := await(w, ch, 0).err
		if w.Real && !w.P.Fair && !errors.Is(err, lockkeeper.ErrNotAcquired) {
			w.checkError(err, context.Canceled, errCause) // one that queues in the process had not begun to
			continue
		}
		waited++
		w.checkError(err, lockkeeper.ErrNotAcquired, context.Canceled, errCause)
	}
	check.That(w, waited != 0, "nobody has waited")
	w.awaitWaiters("x", 0)
	w.release(lease)
	w.checkOnlyTombstones()
}

func holderCrashes(w *World) {
	a := w.Process()
	first := w.hold(a.Lock("x"))
	b := w.Process()
	ch := w.acquireAsync(w.ctx(), 1, b.Lock("x").Lock)
	a.Crash()
	ends := time.Now().Add(ttl)
	r := w.awaitGrant(ch, ttl+50*time.Millisecond)
	w.inTime(r.at.Sub(ends), -ttl, 50*time.Millisecond, "granted after the lease had ended")
	w.checkFenceRises(first, r.lease)
	w.checkError(first.Err(), lockkeeper.ErrLost)
	w.release(r.lease)
	w.checkClean()
}

func wakeupLost(w *World) {
	lease := w.hold(w.Process().Lock("x", withTTL(10*time.Second)))
	b := w.Process()
	ch := w.acquireAsync(w.ctx(), 1, b.Lock("x").Lock)
	b.Net.CutSubscriptions()
	w.release(lease)
	w.release(w.awaitGrant(ch, heartbeatInterval+50*time.Millisecond).lease)
	w.checkClean()
}

func staleSubscription(w *World) {
	lease := w.hold(w.Process().Lock("x", withTTL(10*time.Second)))
	missed := make(chan struct{}, 10)
	b := w.Process(func(o *lockkeeper.Options) {
		o.Hooks.WakeupLost = func(lockkeeper.Event) { missed <- struct{}{} }
	})
	l := b.Lock("x", withTTL(10*time.Second))
	ch := w.acquireAsync(w.ctx(), 1, l.Lock)
	b.Net.BlackholeSubscriptions()
	w.release(lease)
	r := w.awaitGrant(ch, heartbeatInterval+50*time.Millisecond)
	must.Receive(w, missed, 20*time.Second, "the connection is replaced") // the next wake-up is received
	w.release(r.lease)

	lease = w.hold(w.Process().Lock("x", withTTL(10*time.Second)))
	start := time.Now()
	ch = w.acquireAsync(w.ctx(), 1, l.Lock)
	w.release(lease)
	r = w.awaitGrant(ch, heartbeatInterval)
	check.That(w, w.Real || time.Since(start) <= heartbeatInterval/2, "on the new subscription a wake-up took %v", time.Since(start))
	w.release(r.lease)
	w.checkClean()
}

func handoffCommandsConstant(w *World) {
	for _, n := range []int{2, 1000} {
		const keepers, turns = 10, 40
		var ps []*Process
		var ls []Locker
		name := fmt.Sprintf("x%d", n)
		for range keepers {
			p := w.Process(slowHeartbeats)
			ps = append(ps, p)
			ls = append(ls, p.Lock(name, withTTL(time.Minute)))
		}
		lease := w.hold(ls[0])
		ctx, cancel := context.WithCancel(w.ctx())
		got := make(chan *lockkeeper.Lease, n)
		for i := range n {
			go func() {
				if l, err := ls[i%keepers].Lock(ctx); err == nil {
					got <- l
				}
			}()
		}
		w.awaitWaiters(name, map[bool]int64{true: int64(n), false: int64(min(n, keepers))}[w.P.Fair])
		done := min(turns, n)
		scripts := scriptsOf(ps, func() {
			for range done {
				w.release(lease)
				lease = <-got
			}
		})
		check.That(w, scripts*100/done <= 220, "with %d waiters %d scripts for %d hand-offs", n, scripts, done)
		cancel()
		w.release(lease)
	}
}

// scriptsOf counts the scripts that processes send during a call.
func scriptsOf(ps []*Process, f func()) (n int) {
	for _, p := range ps {
		p.Net.ResetCount()
	}
	f()
	for _, p := range ps {
		n += p.Net.Scripts()
	}
	return n
}

func endedContext(w *World) {
	p := w.Process()
	l := p.Lock("x")
	w.checkFree(l)
	lease := w.hold(l)
	ctx, cancel := context.WithCancelCause(w.ctx())
	cancel(errCause)
	p.Net.ResetCount()
	for _, err := range []error{
		errorOf(l.Lock(ctx)), errorOf(l.TryLock(ctx)), lease.Extend(ctx, time.Second), errorOf(l.Adopt(ctx, lease.Token())),
	} {
		w.checkError(err, context.Canceled, errCause)
	}
	check.That(w, p.Net.Scripts() == 0, "%d scripts were sent", p.Net.Scripts())
	w.release(lease)
}

func renewal(w *World) {
	p := w.Process()
	lease := w.hold(p.Lock("renewed"))
	ends := w.hold(p.Lock("fixed", withoutRenewal))
	start := time.Now()
	w.awaitLoss(ends, ttl)
	w.inTime(time.Since(start), ttl*9/10, ttl, "relied on a lease without renewal")
	time.Sleep(ttl)
	w.must(lease.Err())
	w.checkError(errorOf(w.Process().Lock("renewed").TryLock(w.ctx())), lockkeeper.ErrNotAcquired)
	w.checkFree(p.Lock("fixed"))
	w.release(lease)
	w.checkClean()
}

func extend(w *World) {
	p := w.Process()
	l := p.Lock("x", withoutRenewal)
	lease := w.hold(l)
	w.must(lease.Extend(w.ctx(), 3*ttl))
	time.Sleep(2 * ttl)
	w.must(lease.Err())
	w.must(lease.Extend(w.ctx(), ttl/2))
	check.Between(w, left(lease), ttl*8/10, ttl, "an Extend to less than what is left changes what its holder relies on")
	w.awaitLoss(lease, ttl)
	w.checkError(lease.Extend(w.ctx(), ttl), lockkeeper.ErrLost)
	w.eventually("the lease to end at the server too", func() bool { return len(w.holders("x")) == 0 })
	w.checkFree(l)
}

// holders returns the tokens of the leases that have not expired by the server's clock.
func (w *World) holders(name string) []string {
	w.Helper()
	key := w.P.Key(name)
	switch must.Get(w.admin.Type(w.ctx(), key).Result())(w) {
	case "string":
		if v, err := w.admin.Get(w.ctx(), key).Result(); err == nil {
			return []string{v}
		}
	case "zset":
		after := fmt.Sprintf("(%d", w.serverTime().UnixMilli())
		return must.Get(w.admin.ZRangeArgs(w.ctx(), redis.ZRangeArgs{Key: key, ByScore: true, Start: after, Stop: "900000000000000"}).Result())(w)
	}
	return nil
}

func removedByHand(w *World) {
	p := w.Process()
	for what, take := range map[string]func(key string) error{
		"DEL":     func(key string) error { return w.admin.Del(w.ctx(), key).Err() },
		"FLUSHDB": func(string) error { return w.admin.FlushDB(w.ctx()).Err() },
		"PEXPIRE": func(key string) error { return w.admin.PExpire(w.ctx(), key, time.Millisecond).Err() },
		"SET":     func(key string) error { return w.admin.Set(w.ctx(), key, "foreign", time.Minute).Err() },
	} {
		lease := w.hold(p.Lock(what))
		ctx := lease.Context(w.ctx())
		w.must(take(w.P.Key(what)))
		w.awaitLoss(lease, ttl/3+50*time.Millisecond)
		<-ctx.Done()
		check.That(w, errors.Is(context.Cause(ctx), lockkeeper.ErrLost), "%s: cause %v", what, context.Cause(ctx))
	}
}

func noSpuriousLoss(w *World) {
	var losses atomic.Int32
	p := w.Process(func(o *lockkeeper.Options) { o.Hooks.Lost = func(lockkeeper.Event) { losses.Add(1) } })
	lease := w.hold(p.Lock("x"))
	time.Sleep(ttl / 4)
	p.Net.Break("evalsha", 2, faultnet.CutReply)
	time.Sleep(2 * ttl)
	w.must(lease.Err())
	ctx := lease.Context(w.ctx())
	w.release(lease)
	<-ctx.Done()
	check.That(w, errors.Is(context.Cause(ctx), lockkeeper.ErrReleased) && losses.Load() == 0,
		"cause %v, %d calls of Lost", context.Cause(ctx), losses.Load())
	w.checkOnlyTombstones()
}

func unreachableServer(w *World) {
	p := w.Process()
	lease := w.hold(p.Lock("x"))
	time.Sleep(ttl)
	p.Crash()
	down := time.Now()
	deadline := lease.Deadline()
	w.awaitLoss(lease, ttl)
	at := time.Now()
	w.inTime(at.Sub(down), 0, min(ttl, deadline.Sub(down)), "the loss was reported after the server went down")
	check.That(w, len(w.holders("x")) == 1 || w.Real, "the lease expired at the server before its holder considered it lost")
}

func renewalEnds(w *World) {
	renewed := make(chan lockkeeper.Event, 1000)
	p := w.Process(func(o *lockkeeper.Options) { o.Hooks.Renewed = func(e lockkeeper.Event) { renewed <- e } })
	lease := w.hold(p.Lock("x"))
	<-renewed
	w.release(lease)
	for len(renewed) > 0 {
		<-renewed
	}
	p.Net.ResetCount()
	time.Sleep(ttl) // of several renewals
	check.That(w, p.Net.Scripts() == 0 && len(renewed) == 0, "%d scripts, %d renewals after the release", p.Net.Scripts(), len(renewed))

	start := time.Now()
	bounded := w.hold(p.Lock("y", func(o *Options) { o.MaxLifetime = 2 * ttl }))
	time.Sleep(ttl) // what is left of it counts
	err := bounded.Extend(w.ctx(), 3*ttl/2)
	w.checkError(err, lockkeeper.ErrInvalid)
	check.That(w, strings.Contains(err.Error(), "MaxLifetime"), "Extend beyond the maximum lifetime: %v", err)
	w.must(bounded.Err())
	w.awaitLoss(bounded, 2*ttl)
	w.inTime(time.Since(start), ttl*3/2, 2*ttl, "the lease with a maximum lifetime lasted")
	w.eventually("the server to end it as well", func() bool { return len(w.holders("y")) == 0 })
}

func fencesRise(w *World) {
	p := w.Process()
	l := p.Lock("x", withoutRenewal)
	var last uint64
	next := func(what string) {
		w.Helper()
		lease := w.hold(l)
		check.That(w, lease.Fence() > last, "%s: fence %d after %d", what, lease.Fence(), last)
		last = lease.Fence()
		_ = lease.Release(w.ctx())
		time.Sleep(time.Millisecond) // the clock advances, also in virtual time
	}
	for range 5 {
		next("release")
	}
	w.awaitLoss(w.hold(l), ttl)
	next("expiry")
	w.must(w.admin.FlushAll(w.ctx()).Err())
	next("FLUSHALL")
	held := w.hold(l)
	w.must(w.admin.Del(w.ctx(), w.P.Key("x")).Err())
	next("DEL")
	_ = held.Release(w.ctx())
	if w.Real {
		w.server.Kill()
		w.server.Restart()
	} else {
		w.mini.FlushAll()
	}
	next("restart")
	// Fences rise after the server's clock was set back, too, while the metadata exists.
	if !w.Real {
		w.mini.SetTime(time.Now().Add(-time.Hour))
		next("clock set back")
		next("clock set back")
		w.mini.SetTime(time.Time{})
	}
}

// shortLease checks that a lease without renewal that is shorter than the heartbeat timeout, and granted by a
// message, is confirmed for its whole ttl.
func shortLease(w *World) {
	holder := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	ch := w.acquireAsync(w.ctx(), 1, w.Process().Lock("x", withoutRenewal, withTTL(2*heartbeatInterval)).Lock)
	time.Sleep(heartbeatInterval * 9 / 10)
	w.release(holder)
	r := w.awaitGrant(ch, 0)
	w.eventually("it to be confirmed", func() bool {
		w.must(r.lease.Err())
		return r.lease.Deadline().Sub(r.at) > 2*heartbeatInterval-heartbeatInterval/4
	})
	w.awaitLoss(r.lease, time.Until(r.lease.Deadline())+heartbeatInterval/4)
}

func waiterCrashes(w *World) {
	first := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	b, c := w.Process(), w.Process()
	w.acquireAsync(w.ctx(), 1, b.Lock("x").Lock)
	ch := w.acquireAsync(w.ctx(), 2, c.Lock("x").Lock)
	b.Crash()
	w.awaitSubscription(b, false)
	start := time.Now()
	w.release(first)
	r := w.awaitGrant(ch, 50*time.Millisecond)
	check.That(w, w.Real || r.at.Sub(start) <= 50*time.Millisecond, "the crashed waiter delayed the next one by %v", r.at.Sub(start))
	w.release(r.lease)
	w.awaitWaiters("x", 0)
}

func closeKeeper(w *World) {
	released := make(chan string, 10)
	p := w.Process(func(o *lockkeeper.Options) {
		o.Hooks.Released = func(e lockkeeper.Event) { released <- e.Token }
	})
	other := w.hold(w.Process().Lock("busy"))
	lease := w.hold(p.Lock("x"))
	ctx := lease.Context(w.ctx())
	var chans []chan result
	for range 10 {
		chans = append(chans, w.lockAsync(w.ctx(), p.Lock("busy")))
	}
	w.awaitWaiters("busy", map[bool]int64{true: 10, false: 1}[w.P.Fair])
	w.must(p.Close())
	for _, ch := range chans {
		w.checkError(await(w, ch, 0).err, lockkeeper.ErrClosed)
	}
	w.checkError(context.Cause(ctx), lockkeeper.ErrReleased)
	w.checkError(lease.Err(), lockkeeper.ErrReleased)
	token := <-released
	check.That(w, token == lease.Token() && len(released) == 0,
		"Released was called for %q, and for %d more leases", token, len(released))
	p.Net.ResetCount()
	w.release(lease)
	w.checkError(lease.Extend(w.ctx(), ttl), lockkeeper.ErrReleased)
	l := p.Lock("x")
	w.checkError(errorOf(l.Lock(w.ctx())), lockkeeper.ErrClosed)
	w.checkError(errorOf(l.TryLock(w.ctx())), lockkeeper.ErrClosed)
	w.checkError(errorOf(l.Adopt(w.ctx(), other.Token())), lockkeeper.ErrClosed)
	w.checkError(l.Do(w.ctx(), func(context.Context, uint64) error { return nil }), lockkeeper.ErrClosed)
	check.That(w, p.Net.Scripts() == 0, "%d scripts after Close", p.Net.Scripts())
	w.must(p.Close())
	w.must(p.RDB.Ping(w.ctx()).Err()) // the client belongs to the caller
	w.release(other)
	w.checkOnlyTombstones()
}

func foreignKey(w *World) {
	p := w.Process()
	key := w.P.Key("x")
	w.must(w.admin.LPush(w.ctx(), key, "theirs").Err())
	l := p.Lock("x")
	ctx := must.Within(w, 5*time.Second)
	for what, err := range map[string]error{
		"Lock": errorOf(l.Lock(ctx)), "TryLock": errorOf(l.TryLock(ctx)), "Adopt": errorOf(l.Adopt(ctx, "t")),
	} {
		w.checkError(err)
		check.That(w, err != nil && strings.Contains(err.Error(), "WRONGTYPE"), "%s: %v", what, err)
	}
	left := must.Get(w.admin.LRange(w.ctx(), key, 0, -1).Result())(w)
	check.That(w, slices.Equal(left, []string{"theirs"}), "the foreign key is now %v", left)
}

func redisErrors(w *World) {
	p := w.Process(func(o *lockkeeper.Options) { o.Retry.MaxElapsed = heartbeatInterval })
	l := p.Lock("x")
	lease := w.hold(p.Lock("kept"))
	ask := func(code string, want ...error) {
		w.Helper()
		for name, call := range map[string]acquire{"Lock": l.Lock, "TryLock": l.TryLock} {
			err := errorOf(call(w.ctx()))
			w.checkError(err, want...)
			check.That(w, redis.HasErrorPrefix(err, code), "%s: %s: %v", code, name, err)
		}
		w.must(lease.Err())
	}
	admin := func(args ...any) { w.Helper(); w.must(w.admin.Do(w.ctx(), args...).Err()) }

	var waits chan result
	if !w.P.MajorityLock {
		waits = w.lockAsync(w.ctx(), p.Lock("kept"))
		w.awaitWaiters("kept", 1)
	}
	admin("config", "set", "maxmemory", "1")
	ask("OOM")
	if waits != nil { // a waiter learns it from its next heartbeat
		r := await(w, waits, 2*heartbeatInterval)
		w.checkError(r.err)
		check.That(w, redis.IsOOMError(r.err), "OOM: a Lock that waited: %v", r.err)
	}
	w.must(lease.Extend(w.ctx(), ttl)) // a lease that is held can be extended and released
	w.must(lease.Release(w.ctx()))
	admin("config", "set", "maxmemory", "0")
	lease = w.hold(p.Lock("kept", withTTL(time.Minute)))

	admin("replicaof", "127.0.0.1", "1")
	ask("READONLY", lockkeeper.ErrUnavailable)
	admin("config", "set", "replica-serve-stale-data", "no")
	ask("MASTERDOWN", lockkeeper.ErrUnavailable)
	admin("config", "set", "replica-serve-stale-data", "yes")
	admin("replicaof", "no", "one")

	admin("acl", "setuser", "default", "-@scripting")
	ask("NOPERM")
	admin("acl", "setuser", "default", "+@all")

	admin("config", "set", "min-replicas-to-write", "1")
	ask("NOREPLICAS", lockkeeper.ErrUnavailable)
	admin("config", "set", "min-replicas-to-write", "0")
	w.release(lease)

	denied := lockOf(w, clientOf(w, w.server, "nobody", "wrong"))
	err := errorOf(denied.Lock(w.ctx()))
	check.That(w, err != nil && strings.Contains(err.Error(), "WRONGPASS"), "WRONGPASS: %v", err)
	w.checkFree(l)
	w.checkOnlyTombstones()
}

func serverDown(w *World) {
	a, b := w.Process(), w.Process(func(o *lockkeeper.Options) { o.Retry.MaxElapsed = 3 * heartbeatInterval })
	w.hold(a.Lock("x", withTTL(time.Minute)))
	ctx := must.Within(w, 10*time.Minute)
	waits := w.acquireAsync(ctx, 1, b.Lock("x").Lock)
	b.Crash()
	r := await(w, waits, 5*heartbeatInterval)
	w.checkError(r.err, lockkeeper.ErrUnavailable)
	w.checkError(errorOf(b.Lock("y").Lock(ctx)), lockkeeper.ErrUnavailable)
	w.checkError(errorOf(b.Lock("y").TryLock(ctx)), lockkeeper.ErrUnavailable)
	short := must.Within(w, heartbeatInterval)
	w.checkError(errorOf(b.Lock("y").Lock(short)), lockkeeper.ErrUnavailable, context.DeadlineExceeded)
}

// noPubSubPermission checks that locks work without permissions on channels, as fast as heartbeats allow.
func noPubSubPermission(w *World) {
	w.must(w.admin.Do(w.ctx(), "acl", "setuser", "default", "resetchannels").Err())
	lease := w.hold(w.Process().Lock("x"))
	l := w.Process().Lock("x")
	ch := w.acquireAsync(w.ctx(), 1, l.Lock)
	w.release(lease)
	r := w.awaitGrant(ch, heartbeatInterval)
	time.Sleep(2 * ttl)
	w.must(r.lease.Err())
	w.release(r.lease)
	w.checkClean()

	// The waiter may subscribe, but the releasing client may not publish.
	w.must(w.admin.Do(w.ctx(), "acl", "setuser", "default", "allchannels").Err())
	lease = w.hold(lockOf(w, newUser(w, w.server, "~*", "resetchannels")))
	ch = w.acquireAsync(w.ctx(), 1, l.Lock)
	w.release(lease)
	w.release(w.awaitGrant(ch, heartbeatInterval).lease)
	w.checkClean()
}

func doCases(w *World) {
	p := w.Process()
	l, other := p.Lock("x"), w.hold(p.Lock("y"))
	mine := errors.New("mine")
	w.must(l.Do(w.ctx(), func(ctx context.Context, fence uint64) error {
		lease := lockkeeper.LeaseFromContext(ctx)
		valid := fence != 0 && ctx.Err() == nil && lease.Fence() == fence && lease.Err() == nil
		check.That(w, valid, "fence %d, %v, lease %v", fence, ctx.Err(), lease)
		inner := lockkeeper.LeaseFromContext(other.Context(ctx))
		check.That(w, inner == other && lockkeeper.LeaseFromContext(w.ctx()) == nil, "of two leases in a context: %v", inner)
		return nil
	}))
	w.release(other)
	w.checkError(l.Do(w.ctx(), func(context.Context, uint64) error { return mine }), mine)
	p.Net.ResetCount()
	w.checkError(l.Do(w.ctx(), nil), lockkeeper.ErrInvalid)
	check.That(w, p.Net.Scripts() == 0, "%d scripts were sent for a nil function", p.Net.Scripts())
	func() {
		defer func() {
			check.That(w, recover() == "boom", "the panic was swallowed")
		}()
		_ = l.Do(w.ctx(), func(context.Context, uint64) error { panic("boom") })
	}()
	w.checkFree(l)
	w.checkClean()
}

func reacquire(w *World) {
	l := w.Process().Lock("x")
	for range 5 {
		w.checkFree(l)
		w.release(w.hold(l))
	}
	w.checkClean()
}
