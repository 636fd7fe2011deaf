package conformance

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

// ReadWrite are the cases of the read-write lock alone.
var ReadWrite = []Case{
	{Name: "29_read_after_write_has_larger_fence", Test: readFences},
	{Name: "36_readers_share_writer_excludes", Test: readersShareWriterExcludes},
	{Name: "37_readers_queue_behind_waiting_writer", Test: readersQueueBehindWriter},
	{Name: "38_crashed_waiting_writer_blocks_nobody", Test: waitingWriterCrashes},
	{Name: "38_reader_behind_crashed_writer_is_granted_at_a_heartbeat", Test: readerBehindCrashedWriter},
	{Name: "39_only_crashed_readers_lease_expires", Test: readerCrashes},
	{Name: "40_writer_admitted_after_earlier_readers", Test: writerAdmitted},
	{Name: "41_readers_admitted_after_writer_streak", Test: writerStreak},
	{Name: "42_second_upgrade_fails_immediately", Test: upgradeConflict},
	{Name: "42_failed_upgrade_changes_nothing", Test: failedUpgrade},
	{Name: "43_downgrade_has_no_gap_and_admits_readers", Test: downgrade},
	{Name: "43_in_doubt_upgrade_keeps_lease", Test: cancelledConversion(true, true)},
	{Name: "43_in_doubt_downgrade_keeps_lease", Test: cancelledConversion(false, true)},
	{Name: "43_cancelled_upgrade_keeps_lease", Test: cancelledConversion(true, false)},
	{Name: "43_cancelled_downgrade_keeps_lease", Test: cancelledConversion(false, false)},
	{Name: "upgrade_lost_by_failover_is_noticed", Test: lostUpgrade},
	{Name: "inspect_readers_and_writers", Test: inspectReaders},
	{Name: "server_clock_anywhere_for_readers", Embedded: true, Test: anyServerClock(inspectReaders, upgradeConflict, downgrade)},
	{Name: "invalid_streak_rejected", Test: invalidStreak},
	{Name: "invalid_conversions_refused", Test: conversionRefused},
}

func (p *Process) rw(name string, streak ...int) *rwlock.Lock {
	p.w.Helper()
	o := &rwlock.Options{TTL: ttl}
	if len(streak) > 0 {
		o.MaxWriterStreak = streak[0]
	}
	return must.Get(rwlock.New(p.Keeper, name, o))(p.w)
}

// acquireAsync starts an acquisition in the background and returns when n waiters are in the queue.
func (w *World) acquireAsync(ctx context.Context, n int64, f acquire) chan result {
	w.Helper()
	ch := w.start(ctx, f)
	w.awaitWaiters("x", n)
	return ch
}

// upgrading is an upgrade of the lease, as what the helpers for acquisitions take.
func upgrading(l *rwlock.Lock, lease *lockkeeper.Lease) acquire {
	return func(ctx context.Context) (*lockkeeper.Lease, error) { return lease, l.Upgrade(ctx, lease) }
}

func readFences(w *World) {
	l := w.Process().rw("x")
	last := uint64(0)
	for i := range 6 {
		f := l.RLock
		if i%2 == 0 {
			f = l.Lock
		}
		lease := w.mustAcquire(f)
		check.That(w, lease.Fence() > last, "fence %d after %d", lease.Fence(), last)
		last = lease.Fence()
		w.release(lease)
	}
}

func readersShareWriterExcludes(w *World) {
	ps := []*Process{w.Process(), w.Process(), w.Process()}
	var leases []*lockkeeper.Lease
	for i := range 12 {
		leases = append(leases, w.mustAcquire(ps[i%3].rw("x").RLock))
	}
	w.checkError(errorOf(ps[0].rw("x").TryLock(w.ctx())), lockkeeper.ErrNotAcquired)
	writer := w.acquireAsync(w.ctx(), 1, ps[0].rw("x").Lock)
	for _, l := range leases {
		w.expectNotGranted(writer)
		w.release(l)
	}
	lease := w.expectGranted(writer)
	w.checkError(errorOf(ps[1].rw("x").TryRLock(w.ctx())), lockkeeper.ErrNotAcquired)
	w.release(lease)
	w.release(w.mustAcquire(ps[1].rw("x").TryRLock))
	w.checkClean()
}

func readersQueueBehindWriter(w *World) {
	l := w.Process().rw("x")
	first := w.mustAcquire(l.RLock)
	w.checkError(errorOf(w.Process().rw("x").TryLock(w.ctx())), lockkeeper.ErrNotAcquired)
	w.release(w.mustAcquire(l.TryRLock)) // the refused try left no queue entry

	ctx, cancel := context.WithCancel(w.ctx())
	writer := w.acquireAsync(ctx, 1, w.Process().rw("x").Lock)
	w.checkError(errorOf(l.TryRLock(w.ctx())), lockkeeper.ErrNotAcquired)
	reader := w.acquireAsync(w.ctx(), 2, w.Process().rw("x").RLock)
	time.Sleep(2 * heartbeatInterval)
	w.expectNotGranted(reader)
	cancel() // without the writer they need not wait
	w.checkError(await(w, writer, 0).err, lockkeeper.ErrNotAcquired, context.Canceled)
	w.release(w.expectGranted(reader))
	w.release(first)
	w.checkClean()
}

func waitingWriterCrashes(w *World) {
	l := w.Process().rw("x")
	first := w.mustAcquire(l.RLock)
	dead := w.Process()
	w.acquireAsync(w.ctx(), 1, dead.rw("x").Lock)
	dead.Crash()
	w.awaitSubscription(dead, false)
	w.release(w.mustAcquire(l.TryRLock))
	w.release(first)
}

func readerBehindCrashedWriter(w *World) {
	first := w.mustAcquire(w.Process().rw("x").RLock)
	dead := w.Process()
	w.acquireAsync(w.ctx(), 1, dead.rw("x").Lock)
	behind := w.acquireAsync(w.ctx(), 2, w.Process().rw("x").RLock)
	dead.Crash()
	w.awaitSubscription(dead, false)
	w.release(w.awaitGrant(behind, heartbeatInterval).lease)
	w.release(first)
}

func readerCrashes(w *World) {
	a, b := w.Process(), w.Process()
	dead, alive := w.mustAcquire(a.rw("x").RLock), w.mustAcquire(b.rw("x").RLock)
	at := time.Now()
	writer := w.acquireAsync(w.ctx(), 1, w.Process().rw("x").Lock)
	a.Crash()
	time.Sleep(ttl / 2)
	w.must(alive.Err())
	w.release(alive)
	r := w.awaitGrant(writer, ttl+50*time.Millisecond)
	w.inTime(r.at.Sub(at), ttl/2, ttl+50*time.Millisecond, "the writer was granted the lock")
	w.release(r.lease)
	w.awaitLoss(dead, 0)
}

func writerAdmitted(w *World) {
	before := []*lockkeeper.Lease{w.mustAcquire(w.Process().rw("x").RLock), w.mustAcquire(w.Process().rw("x").RLock)}
	writer := w.acquireAsync(w.ctx(), 1, w.Process().rw("x").Lock)
	var after []chan result
	for i := range 5 {
		after = append(after, w.acquireAsync(w.ctx(), int64(2+i), w.Process().rw("x").RLock))
	}
	second := w.acquireAsync(w.ctx(), 7, w.Process().rw("x").Lock)
	w.release(before[0])
	w.expectNotGranted(writer)
	w.release(before[1])
	lease := w.expectGranted(writer)
	w.release(lease)
	w.release(w.expectGranted(second)) // consecutive writers
	for _, ch := range after {
		w.release(w.expectGranted(ch))
	}
	w.checkClean()
}

func writerStreak(w *World) {
	for streak, want := range map[int]string{
		1: "wrwwww", 2: "wwrwww", -1: "wwwwwr", 0: strings.Repeat("w", 16) + "rww", // by default
	} {
		first := w.mustAcquire(w.Process().rw("x", streak).Lock)
		order := make(chan string, len(want))
		turn := func(what string, f acquire) {
			lease, err := f(w.ctx())
			must.Report(w, err)
			order <- what
			_ = lease.Release(w.ctx())
		}
		l := w.Process().rw("x", streak)
		go turn("r", l.RLock)
		w.awaitWaiters("x", 1)
		for i := range len(want) - 1 {
			go turn("w", w.Process().rw("x", streak).Lock)
			w.awaitWaiters("x", int64(2+i))
		}
		w.release(first)
		var got strings.Builder
		for range want {
			got.WriteString(<-order)
		}
		check.That(w, got.String() == want, "with MaxWriterStreak %d they were served as %s, want %s", streak, got.String(), want)
		w.checkClean()
		w.forget() // the streak
	}
}

func upgradeConflict(w *World) {
	a, b := w.Process().rw("x"), w.Process().rw("x")
	ra, rb := w.mustAcquire(a.RLock), w.mustAcquire(b.RLock)
	token, fence, ctx := ra.Token(), ra.Fence(), ra.Context(w.ctx())
	ch := w.acquireAsync(w.ctx(), 1, upgrading(a, ra))
	w.checkError(b.Upgrade(w.ctx(), rb), rwlock.ErrUpgradeConflict)
	w.must(rb.Err())
	w.expectNotGranted(ch)
	w.release(rb)
	w.expectGranted(ch)
	w.must(ctx.Err()) // the lease goes on
	check.That(w, ra.Token() == token && ra.Fence() > fence, "the lease %q with fence %d has become %q with %d", token, fence, ra.Token(), ra.Fence())
	w.checkError(errorOf(b.TryRLock(w.ctx())), lockkeeper.ErrNotAcquired)
	w.release(ra)
	<-ctx.Done()
	w.checkClean()
}

func failedUpgrade(w *World) {
	a := w.Process().rw("x")
	ra, rb := w.mustAcquire(a.RLock), w.mustAcquire(w.Process().rw("x").RLock)
	ctx, cancel := context.WithCancel(w.ctx())
	up := w.acquireAsync(ctx, 1, upgrading(a, ra))
	cancel()
	w.checkError(await(w, up, 0).err, lockkeeper.ErrNotAcquired, context.Canceled)
	w.awaitWaiters("x", 0)
	time.Sleep(3 * ttl / 2)
	w.must(ra.Err())
	w.release(w.mustAcquire(a.TryRLock))

	// If the read lease is deleted while the upgrade waits, there is nothing to upgrade.
	up = w.acquireAsync(w.ctx(), 1, upgrading(a, ra))
	w.must(w.admin.ZRem(w.ctx(), w.P.Key("x"), ra.Token()).Err())
	w.checkError(await(w, up, 2*ttl).err, lockkeeper.ErrLost)
	w.checkError(ra.Err(), lockkeeper.ErrLost)
	w.checkError(a.Upgrade(w.ctx(), ra), lockkeeper.ErrLost)
	w.release(rb)

	// The lease is released while the upgrade waits.
	ra, rb = w.mustAcquire(a.RLock), w.mustAcquire(w.Process().rw("x").RLock)
	up = w.acquireAsync(w.ctx(), 1, upgrading(a, ra))
	w.release(ra)
	w.checkError(await(w, up, 0).err, lockkeeper.ErrReleased)
	w.release(rb)
	w.checkClean()
}

func downgrade(w *World) {
	a := w.Process().rw("x")
	lease := w.mustAcquire(a.Lock)
	ctx, token, fence := lease.Context(w.ctx()), lease.Token(), lease.Fence()
	reader := w.acquireAsync(w.ctx(), 1, w.Process().rw("x").RLock)
	writer := w.acquireAsync(w.ctx(), 2, w.Process().rw("x").Lock)
	late := w.acquireAsync(w.ctx(), 3, w.Process().rw("x").RLock)
	w.must(a.Downgrade(w.ctx(), lease))
	w.must(ctx.Err())
	check.That(w, lease.Token() == token && lease.Fence() > fence, "the lease %q with fence %d has become %q with %d", token, fence, lease.Token(), lease.Fence())
	w.expectNotGranted(writer) // it waits, and therefore readers wait behind it
	w.expectNotGranted(reader)
	w.release(lease)
	<-ctx.Done()
	w.release(w.expectGranted(writer))
	w.release(w.expectGranted(reader))
	w.release(w.expectGranted(late))

	// Without a writer in the queue the downgrade admits readers.
	lease = w.mustAcquire(a.Lock)
	reader = w.acquireAsync(w.ctx(), 1, w.Process().rw("x").RLock)
	late = w.acquireAsync(w.ctx(), 2, w.Process().rw("x").RLock)
	w.must(a.Downgrade(w.ctx(), lease))
	w.release(w.expectGranted(reader))
	w.release(w.expectGranted(late))
	time.Sleep(2 * ttl)
	w.must(lease.Err())
	w.checkError(errorOf(w.Process().rw("x").TryLock(w.ctx())), lockkeeper.ErrNotAcquired)
	w.release(w.mustAcquire(w.Process().rw("x").TryRLock))
	fence = lease.Fence()
	w.must(a.Upgrade(w.ctx(), lease))
	check.That(w, lease.Fence() > fence, "fence %d after %d", lease.Fence(), fence)
	w.awaitRenewal(lease) // which does not make it read again
	w.checkError(errorOf(w.Process().rw("x").TryRLock(w.ctx())), lockkeeper.ErrNotAcquired)
	w.release(lease)

	// A lease that has ended.
	lease = w.mustAcquire(a.Lock)
	w.must(w.admin.Del(w.ctx(), w.P.Key("x")).Err())
	w.checkError(a.Downgrade(w.ctx(), lease), lockkeeper.ErrLost)
	w.checkError(lease.Err(), lockkeeper.ErrLost)
	w.checkClean()
}

// lostUpgrade: after a failover to a server that has the lease, but not that it writes, a renewal finds that out.
func lostUpgrade(w *World) {
	l := w.Process().rw("x")
	lease := w.mustAcquire(l.Lock)
	w.must(l.Downgrade(w.ctx(), lease))
	w.awaitRenewal(lease)
	w.must(l.Upgrade(w.ctx(), lease))
	w.awaitRenewal(lease)
	w.must(w.admin.ZIncrBy(w.ctx(), w.P.Key("x"), -0.5, lease.Token()).Err())
	w.awaitLoss(lease, ttl)
	w.checkError(errorOf(lease, lease.Release(w.ctx())), lockkeeper.ErrLost)
	w.checkClean()
}

// awaitRenewal returns when a lease was renewed twice: the first answer may be to a call that was under way.
func (w *World) awaitRenewal(lease *lockkeeper.Lease) {
	w.Helper()
	for range 2 {
		before := lease.Deadline()
		w.eventually("a renewal", func() bool { return lease.Deadline().After(before) })
	}
	w.must(lease.Err())
}

func inspectReaders(w *World) {
	p := w.Process()
	l := p.rw("x")
	a, b := w.mustAcquire(l.RLock), w.mustAcquire(l.RLock)
	ctx, cancel := context.WithCancel(w.ctx())
	write := w.acquireAsync(ctx, 1, l.Lock)
	read := w.acquireAsync(ctx, 2, l.RLock)
	up := w.acquireAsync(ctx, 3, upgrading(l, a))
	holders := must.Get(l.Holders(w.ctx()))(w)
	for _, h := range holders {
		known := h.Fence == a.Fence() || h.Fence == b.Fence()
		check.That(w, !h.Writes && h.Keeper == p.ID() && h.ExpiresIn > 0 && h.ExpiresIn <= ttl && known, "holder %+v", h)
	}
	waiters := must.Get(l.Waiters(w.ctx()))(w)
	check.That(w, len(holders) == 2 && len(waiters) == 3 && waiters[0].Writes && waiters[1].Writes && !waiters[2].Writes,
		"holders %+v, waiters %+v", holders, waiters)
	for _, x := range waiters {
		check.That(w, x.WaitTime <= 10*time.Second, "waiter %+v", x)
	}
	cancel()
	for _, ch := range []chan result{write, read, up} {
		w.checkError(await(w, ch, 0).err, lockkeeper.ErrNotAcquired, context.Canceled)
	}
	w.release(a)
	w.release(b)
	w.awaitWaiters("x", 0) // so that the next is granted by a reply: a message may overtake one, which can leave a tombstone
	lease := w.mustAcquire(l.Lock)
	holders = must.Get(l.Holders(w.ctx()))(w)
	check.That(w, len(holders) == 1 && holders[0].Writes, "holders %+v", holders)
	w.release(lease)
	w.checkClean()
}

func invalidStreak(w *World) {
	_, err := rwlock.New(w.Process().Keeper, "x", &rwlock.Options{MaxWriterStreak: 1_000_001})
	w.checkError(err, lockkeeper.ErrInvalid)
	check.That(w, strings.Contains(err.Error(), "MaxWriterStreak 1000001"), "the error does not name it: %v", err)
}

// cancelledConversion cancels a conversion while the network fails: the requests of its script, or of all scripts. An upgrade is given up:
// the lease reads, whether the server had granted it or not. After a downgrade that may have run, or may still run, the lease reads as well.
// The error is an outage, not contention.
func cancelledConversion(up, all bool) func(*World) {
	return func(w *World) {
		for _, fault := range []faultnet.Fault{faultnet.LoseRequest, faultnet.SwallowReply} {
			p := w.Process()
			l := must.Get(rwlock.New(p.Keeper, "x", &rwlock.Options{TTL: 20 * ttl}))(w)
			take, convert, broken := l.Lock, l.Downgrade, lua.RWLock.Downgrade.SHA
			if up {
				take, convert, broken = l.RLock, l.Upgrade, lua.RWLock.Acquire.SHA
			}
			lease := w.mustAcquire(take)
			token, fence := lease.Token(), lease.Fence()
			w.release(w.mustAcquire(p.rw("y").TryLock)) // opens connections and loads scripts
			if all {
				broken = "evalsha"
			}
			p.Net.Break(broken, 1<<30, fault)
			restore := time.AfterFunc(2*time.Second, p.Net.Restore)
			w.Cleanup(func() { restore.Stop() })
			ctx := must.Within(w, ttl/6)
			began := time.Now()
			err := convert(ctx, lease)
			check.That(w, time.Since(began) <= ttl/6+w.slack(), "it returned after %v", time.Since(began))
			if up {
				w.checkError(err, context.DeadlineExceeded, lockkeeper.ErrUnavailable)
			} else {
				w.must(err)
			}
			w.must(lease.Err())
			check.That(w, lease.Token() == token && lease.Fence() >= fence, "the lease %q with fence %d has become %q with %d", token, fence, lease.Token(), lease.Fence())
			reader := w.Process().rw("x")
			w.eventually("readers to be admitted", func() bool { // once the server has learned of it
				r, err := reader.TryRLock(w.ctx())
				if err == nil {
					w.release(r)
				}
				return err == nil
			})
			w.checkExcludes(lease, false)

			lease = w.mustAcquire(l.RLock)
			w.must(l.Upgrade(w.ctx(), lease))
			w.checkExcludes(lease, true)
		}
		w.checkOnlyTombstones()
	}
}

// checkExcludes checks that the lease excludes writers, and readers or not, for longer than its ttl, and that it can
// be released.
func (w *World) checkExcludes(lease *lockkeeper.Lease, readers bool) {
	w.Helper()
	if !w.Real {
		time.Sleep(50 * ttl)
	}
	w.must(lease.Err())
	check.That(w, time.Until(lease.Deadline()) >= ttl, "its holder relies on it for %v", time.Until(lease.Deadline()))
	other := w.Process().rw("x")
	w.checkError(errorOf(other.TryLock(w.ctx())), lockkeeper.ErrNotAcquired)
	r, err := other.TryRLock(w.ctx())
	if readers {
		w.checkError(err, lockkeeper.ErrNotAcquired)
	} else {
		w.must(err)
		w.release(r)
	}
	ctx := lease.Context(w.ctx())
	w.release(lease)
	<-ctx.Done()
	w.checkError(lease.Err(), lockkeeper.ErrReleased)
	w.release(w.mustAcquire(other.TryLock))
}

// conversionRefused checks conversions of a lease that has ended, of another lock's or keeper's, of the wrong kind, and of one that
// is being converted, and that each call which has had the lease has one end.
func conversionRefused(w *World) {
	var mu sync.Mutex
	var reported []uint64
	p := w.Process(func(o *lockkeeper.Options) {
		o.Hooks.Released = func(e lockkeeper.Event) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, e.Fence)
		}
	})
	l, other := p.rw("x"), w.Process().rw("x")
	lease := w.mustAcquire(l.Lock)
	want := []uint64{lease.Fence()}
	w.checkError(other.Downgrade(w.ctx(), lease), lockkeeper.ErrInvalid)
	w.checkError(l.Upgrade(w.ctx(), lease), lockkeeper.ErrInvalid)
	w.must(l.Downgrade(w.ctx(), lease))
	want = append(want, lease.Fence())
	w.checkError(l.Upgrade(w.ctx(), nil), lockkeeper.ErrReleased)
	w.checkError(l.Downgrade(w.ctx(), nil), lockkeeper.ErrReleased)
	w.checkError(l.Downgrade(w.ctx(), lease), lockkeeper.ErrInvalid)
	w.checkError(other.Upgrade(w.ctx(), lease), lockkeeper.ErrInvalid)
	w.checkError(p.rw("y").Upgrade(w.ctx(), lease), lockkeeper.ErrInvalid)
	mutexLease := w.mustAcquire(must.Get(mutex.New(p.Keeper, "x", nil))(w).Lock)
	w.checkError(l.Upgrade(w.ctx(), mutexLease), lockkeeper.ErrInvalid)
	want = append(want, mutexLease.Fence())
	w.release(mutexLease)

	second := w.mustAcquire(other.RLock)
	up := w.acquireAsync(w.ctx(), 1, upgrading(l, lease))
	w.checkError(l.Upgrade(w.ctx(), lease), lockkeeper.ErrInvalid) // another call converts it
	w.release(second)
	w.expectGranted(up)
	w.checkError(l.Upgrade(w.ctx(), lease), lockkeeper.ErrInvalid)
	want = append(want, lease.Fence())
	w.release(lease)
	w.checkError(l.Upgrade(w.ctx(), lease), lockkeeper.ErrReleased)
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(want)
	slices.Sort(reported)
	check.That(w, slices.Equal(reported, want), "Released was called for the fences %d, want %d", reported, want)
	w.checkClean()
}
